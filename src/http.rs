//! The server, the API and the page.

pub mod exporters;
mod offline;

pub(crate) use offline::write_heap_html;
