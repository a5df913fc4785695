//! A debuginfod server on this machine, which answers as a test tells it.

#![allow(dead_code, reason = "each test binary uses its own part")]

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use super::listening::{self, Serve, Stream};

/// How a server answers.
#[derive(Clone)]
pub enum Answer {
    /// With this body.
    File(Vec<u8>),
    /// With this status.
    Status(u16),
    /// With this claim of a length, and then this many bytes of zeros.
    Zeros { claim: Option<u64>, sent: u64 },
    /// Never, or not to the end: after these bytes it sends nothing more.
    Silent(&'static str),
    /// With a redirect.
    Moved(String),
    /// With one byte of an endless body ten times a second.
    Dripping,
}

/// A server on this machine, which answers each path in its way, others with 404.
pub struct Server {
    pub url: String,
    answers: Arc<Mutex<HashMap<String, Answer>>>,
    pub asked: Arc<Mutex<Vec<String>>>,
}

impl Server {
    pub fn start() -> Server {
        Server::start_as(listening::listen)
    }

    /// A server over TLS, with the certificate and the key of these PEM files.
    pub fn start_tls(certificate: &Path, key: &Path) -> Server {
        Server::start_as(|serve| listening::listen_tls(certificate, key, serve))
    }

    fn start_as(listen: impl FnOnce(Serve) -> String) -> Server {
        let answers = Arc::<Mutex<HashMap<String, Answer>>>::default();
        let asked = Arc::<Mutex<Vec<String>>>::default();
        let (answered, seen) = (Arc::clone(&answers), Arc::clone(&asked));
        let url = listen(Box::new(move |stream| serve(stream, &answered, &seen)));
        Server {
            url,
            answers,
            asked,
        }
    }

    pub fn answers(&self, id: &str, answer: Answer) {
        let path = format!("/buildid/{id}/debuginfo");
        self.answers.lock().unwrap().insert(path, answer);
    }
}

fn serve(
    stream: &mut dyn Stream,
    answers: &Mutex<HashMap<String, Answer>>,
    asked: &Mutex<Vec<String>>,
) -> std::io::Result<()> {
    let Some(head) = listening::read_head(stream)? else {
        return Ok(());
    };
    let path = head.split(' ').nth(1).unwrap().to_owned();
    asked.lock().unwrap().push(path.clone());
    let answer = answers.lock().unwrap().get(&path).cloned();
    let close = "Connection: close\r\n\r\n";
    match answer.unwrap_or(Answer::Status(404)) {
        Answer::File(body) => {
            write!(
                stream,
                "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n{close}",
                body.len()
            )?;
            stream.write_all(&body)?;
            stream.flush()
        }
        Answer::Status(status) => {
            write!(
                stream,
                "HTTP/1.1 {status} No\r\nContent-Length: 0\r\n{close}"
            )
        }
        Answer::Zeros { claim, sent } => {
            let length = claim.map(|n| format!("Content-Length: {n}\r\n"));
            write!(
                stream,
                "HTTP/1.1 200 OK\r\n{}{close}",
                length.unwrap_or_default()
            )?;
            let zeros = [0; 64 << 10];
            for _ in 0..sent / zeros.len() as u64 {
                stream.write_all(&zeros)?;
            }
            Ok(())
        }
        Answer::Silent(text) => {
            stream.write_all(text.as_bytes())?;
            thread::sleep(Duration::from_secs(60));
            Ok(())
        }
        Answer::Dripping => {
            write!(stream, "HTTP/1.1 200 OK\r\n{close}")?;
            for _ in 0..600 {
                stream.write_all(b"x")?;
                thread::sleep(Duration::from_millis(100));
            }
            Ok(())
        }
        Answer::Moved(to) => {
            write!(
                stream,
                "HTTP/1.1 302 Found\r\nLocation: {to}\r\nContent-Length: 0\r\n{close}"
            )
        }
    }
}
