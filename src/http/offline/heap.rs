//! Exports one HTML file that shows a heap snapshot: the page's view of it, together with the reply that it would
//! request.

use std::io::{self, Write};

use super::{page, write_page};
use crate::http::api::write_heap;
use memprof_heap::HeapSnapshot;

/// Writes the file.
///
/// # Errors
/// Errors of `out`.
pub(crate) fn write(taken: &HeapSnapshot, out: &mut dyn Write) -> io::Result<()> {
    write_page(page::of_a_heap(), &[], out, |data| write_heap(taken, data))
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::http::offline::tests::{NASTY, data};
    use memprof_heap::{Heap, Seen, TypeKind, TypeRow, Types};

    fn written(comm: &str, name: &str) -> String {
        let row = TypeRow {
            kind: TypeKind::Class,
            name: name.to_owned(),
            count: 1,
            bytes: 16,
            example: 4096,
            unreachable: 0,
            unreachable_bytes: 0,
            retained_by: Vec::new(),
        };
        let heap = Heap {
            comm: comm.to_owned(),
            types: Some(Types {
                rows: vec![row],
                ..Types::default()
            }),
            seen: vec![Seen {
                name: "jemalloc",
                version: None,
                module: name.to_owned(),
                evidence: name.to_owned(),
                tool: None,
            }],
            ..Heap::default()
        };
        let taken = SystemTime::UNIX_EPOCH;
        let mut out = Vec::new();
        write(
            &HeapSnapshot {
                heap,
                taken,
                grown_by: None,
                zero_by: None,
                by_stack: None,
            },
            &mut out,
        )
        .unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn names_are_in_the_data_only() {
        let html = written(NASTY, NASTY);
        assert!(!html.contains("alert(1)"));
        let tags = |html: &str| html.matches("<script").count() + html.matches("</script").count();
        assert_eq!(tags(&html), tags(&written("a", "b")));
        let data = data(&html);
        assert_eq!(data["snapshot"]["comm"], NASTY);
        assert_eq!(data["heap"]["types"]["rows"][0]["name"], NASTY);
        assert_eq!(data["heap"]["seen"][0]["module"], NASTY);
    }

    #[test]
    fn the_document_refers_to_nothing_outside() {
        let html = written(NASTY, NASTY);
        assert!(html.contains("default-src 'none'"));
        for outside in ["src=\"", "href=\"", "@import"] {
            assert!(!html.contains(outside), "{outside}");
        }
    }
}
