//! Connections whose replies wait.

use std::net::{IpAddr, Ipv4Addr};
use std::task::Waker;

use tokio::sync::mpsc;

use super::super::registry::{Client, Registry};
use super::*;

#[tokio::test]
async fn a_reply_that_waits_for_its_next_piece_does_not_wake_its_task() {
    let client = Client::Address(IpAddr::V4(Ipv4Addr::LOCALHOST));
    let connection = Arc::new(Registry::new(4).admit(client).await);
    let (deadline, mut watched) = watch::channel(None);
    let (send, pieces) = mpsc::channel(1);
    let mut body = ResponseBody {
        rest: Reply::Live(pieces),
        limit: Duration::from_secs(1),
        under_way: UnderWay {
            deadline,
            connection,
        },
    };
    let mut cx = Context::from_waker(Waker::noop());
    let mut poll = || Pin::new(&mut body).poll_frame(&mut cx).is_ready();
    for _ in 0..2 {
        assert!(!poll());
        assert!(!watched.has_changed().unwrap(), "nothing to wait for");
    }
    send.try_send(Bytes::from_static(b"piece")).unwrap();
    assert!(poll());
    assert!(
        watched.borrow_and_update().is_some(),
        "must be read in time"
    );
    assert!(!poll());
    assert!(watched.borrow_and_update().is_none(), "was read");
    assert!(!poll());
    assert!(!watched.has_changed().unwrap(), "woken without reason");
}
