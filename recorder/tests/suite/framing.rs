//! The stream of messages in the plain text of chunks, after lost bytes.

use tezos_recorder::budget::Budget;
use tezos_recorder::p2p::message::{Kind, Layer};
use tezos_recorder::p2p::messages::{Messages, PlainChunk};
use tezos_recorder::time::Timestamp;

use crate::play::operation;

/// Messages after lost bytes.
struct Tried {
    messages: Messages,
    number: u64,
}

impl Tried {
    fn new() -> Self {
        let mut messages = Messages::new(Budget::new(1 << 20));
        messages.interrupt(&mut |_| panic!("nothing was unfinished"));
        Self {
            messages,
            number: 10,
        }
    }

    /// The kinds and sizes of the messages that end in a chunk.
    fn push(&mut self, text: &[u8]) -> Vec<(Kind, usize)> {
        self.number += 1;
        let chunk = PlainChunk {
            number: self.number,
            raw: 0..1,
            began: Timestamp(1),
            time: Timestamp(1),
            text,
        };
        let mut seen = Vec::new();
        self.messages.push(&chunk, &mut |framed| {
            seen.push((framed.decode(Layer::Node).kind, framed.bytes.len()));
        });
        seen
    }
}

#[test]
fn messages_begin_with_the_first_chunk_that_is_one() {
    let mut tried = Tried::new();
    let whole = operation(1, 20);
    assert_eq!(tried.push(&[]), []);
    assert_eq!(tried.push(b"the rest of a long message"), []);
    // Right in length and tag, but the grammar is another.
    assert_eq!(tried.push(&[0, 0, 0, 3, 0, 0x13, 9]), []);
    // Nobody knows the tag.
    assert_eq!(tried.push(&[0, 0, 0, 2, 0x77, 0x77]), []);
    // The first is right, the second is not.
    assert_eq!(
        tried.push(&[&whole[..], &[0, 0, 0, 2, 0, 0x77]].concat()),
        []
    );
    // Longer than a message of its kind can be.
    assert_eq!(tried.push(&[0x05, 0, 0, 0, 0, 0x31, 1, 2]), []);
    assert_eq!(tried.push(&whole), [(Kind::Operation, 58)]);
    assert_eq!(tried.push(&[0, 0, 0, 2, 0x77, 0x77]), [(Kind::Unknown, 6)]);
}

#[test]
fn two_messages_and_a_half_may_share_the_first_chunk() {
    let mut tried = Tried::new();
    let whole = operation(1, 20);
    let first = [&whole[..], &whole, &whole[..30]].concat();
    let expected = (Kind::Operation, whole.len());
    assert_eq!(tried.push(&first), [expected, expected]);
    assert_eq!(tried.push(&whole[30..]), [expected]);
    assert_eq!(tried.push(&whole), [expected]);
}

#[test]
fn what_only_seemed_to_be_a_message_is_dropped() {
    let mut tried = Tried::new();
    let whole = operation(1, 20);
    // A chunk of a long message that happens to begin like an operation, which would end within the next chunk.
    assert_eq!(tried.push(&whole[..30]), []);
    let rest = [&whole[30..], b"and the rest of the long message"].concat();
    assert_eq!(tried.push(&rest), []);
    assert_eq!(tried.push(&whole), [(Kind::Operation, whole.len())]);
}
