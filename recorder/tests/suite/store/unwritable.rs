//! Files whose header says that they cannot be written.

use tezos_recorder::store::{ConnectionId, Entry, Store};

use super::damage::{damage, ids, put_all_counting, segments, settings};
use super::entries::{connection, dir, message, open, put_all};

#[test]
fn a_segment_that_can_only_be_read_is_left_and_such_connections_set_aside() {
    let (_dir, path) = dir();
    let store = open(&path, settings());
    put_all(
        &store,
        (0..100).map(|id| Entry::Message(Box::new(message(id)))),
    );
    store.close();
    let files = [path.join("main.db"), segments(&path).remove(1)];
    for file in &files {
        // The version of the format that is needed to write it.
        damage(file, |bytes| bytes[18] = 3);
    }
    let store = Store::open(&path, settings()).unwrap();
    put_all_counting(&store, 100..150);
    assert_eq!(ids(&store), (0..150).collect::<Vec<_>>());
    assert_eq!(store.health().damaged, files[..1]);
    let entry = Entry::Connection(Box::new(connection(7)));
    store.writer().put(entry);
    store.writer().flush();
    let found = store.reader().unwrap().connection(ConnectionId(7));
    assert!(found.unwrap().is_some());
}
