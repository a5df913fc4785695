//! A store of profiles on this machine, which answers as a test tells it and keeps what it receives.

#![allow(dead_code, reason = "each test binary uses its own part")]

use std::collections::VecDeque;
use std::io::{self, Read};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use flate2::read::GzDecoder;

use super::listening::{self, Serve, Stream};
use super::process::LIMIT;

/// How a store answers a request.
#[derive(Clone)]
pub enum Answer {
    /// With this status, further header lines, and a body.
    Reply(u16, &'static str, Vec<u8>),
    /// Not at all.
    Hang,
    /// It closes the connection.
    Close,
}

impl Answer {
    pub fn status(status: u16) -> Answer {
        Answer::Reply(status, "", Vec::new())
    }
}

/// A request.
#[derive(Clone, Debug)]
pub struct Received {
    pub path: String,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    pub at: Instant,
}

impl Received {
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut values = self.headers.iter().filter(|(n, _)| n == name);
        let value = values.next().map(|(_, value)| value.as_str());
        assert!(values.next().is_none(), "the header {name} is repeated");
        value
    }

    /// The body without its compression.
    pub fn content(&self) -> Vec<u8> {
        match self.header("content-encoding") {
            Some("gzip") => gunzip(&self.body),
            None => self.body.clone(),
            other => panic!("{other:?}"),
        }
    }
}

pub fn gunzip(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    GzDecoder::new(bytes).read_to_end(&mut out).unwrap();
    out
}

#[derive(Default)]
struct StoreState {
    /// The next answers; then it takes everything.
    answers: Mutex<VecDeque<Answer>>,
    received: Mutex<Vec<Received>>,
    news: Condvar,
}

pub struct Store {
    pub url: String,
    state: Arc<StoreState>,
}

impl Store {
    pub fn start() -> Store {
        Store::start_as(listening::listen)
    }

    pub fn start_tls(certificate: &Path, key: &Path) -> Store {
        Store::start_as(|serve| listening::listen_tls(certificate, key, serve))
    }

    fn start_as(listen: impl FnOnce(Serve) -> String) -> Store {
        let state = Arc::new(StoreState::default());
        let serves = Arc::clone(&state);
        let url = listen(Box::new(move |stream| serve(stream, &serves)));
        Store { url, state }
    }

    /// Answers the next requests in these ways.
    pub fn answers(&self, answers: impl IntoIterator<Item = Answer>) {
        self.state.answers.lock().unwrap().extend(answers);
    }

    /// Takes everything from now on.
    pub fn takes_everything(&self) {
        self.state.answers.lock().unwrap().clear();
    }

    pub fn received(&self) -> Vec<Received> {
        self.state.received.lock().unwrap().clone()
    }

    /// Waits until it has received this many requests.
    #[track_caller]
    pub fn wait_for(&self, number: usize) -> Vec<Received> {
        let end = Instant::now() + LIMIT;
        let mut received = self.state.received.lock().unwrap();
        while received.len() < number {
            let left = end.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "{} of {number} requests", received.len());
            received = self.state.news.wait_timeout(received, left).unwrap().0;
        }
        received.clone()
    }
}

fn serve(stream: &mut dyn Stream, state: &StoreState) -> io::Result<()> {
    while let Some(head) = listening::read_head(stream)? {
        let mut lines = head.trim_end().split("\r\n");
        let mut first = lines.next().unwrap().split(' ');
        assert_eq!(first.next(), Some("POST"));
        let path = first.next().unwrap().to_owned();
        let header = |line: &str| {
            let (name, value) = line.split_once(':').unwrap();
            (name.to_ascii_lowercase(), value.trim().to_owned())
        };
        let mut request = Received {
            path,
            headers: lines.map(header).collect(),
            body: Vec::new(),
            at: Instant::now(),
        };
        let length = request.header("content-length").unwrap().parse().unwrap();
        request.body = vec![0; length];
        stream.read_exact(&mut request.body)?;
        let answer = state.answers.lock().unwrap().pop_front();
        state.received.lock().unwrap().push(request);
        state.news.notify_all();
        match answer.unwrap_or(Answer::status(200)) {
            Answer::Reply(status, headers, body) => {
                let length = body.len();
                write!(
                    stream,
                    "HTTP/1.1 {status} X\r\nContent-Length: {length}\r\n{headers}\r\n"
                )?;
                stream.write_all(&body)?;
                stream.flush()?;
            }
            Answer::Hang => thread::sleep(Duration::from_secs(60)),
            Answer::Close => return Ok(()),
        }
    }
    Ok(())
}
