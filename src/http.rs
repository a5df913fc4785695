//! The API and the page, and how the server is given them.

pub mod api;
pub mod exporters;
mod offline;
pub(crate) mod series;
pub mod server;
pub mod web;

pub(crate) use offline::write_heap_html;
