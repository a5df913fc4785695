//! A server of tests, and requests to it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use memprof_server::{Listen, Listener, ServerOptions, bind, serve};
use serde_json::Value;
use tezos_recorder::api::Api;
use tokio::sync::oneshot;

/// A server, which ends when it is dropped.
pub struct Server {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// A reply.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Reply {
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(other, _)| other == name);
        found.map(|(_, value)| value.as_str())
    }

    pub fn text(&self) -> &str {
        str::from_utf8(&self.body).unwrap()
    }
}

impl Server {
    pub fn new(api: Arc<Api>) -> Self {
        Self::with(api, ServerOptions::default())
    }

    pub fn with(api: Arc<Api>, options: ServerOptions) -> Self {
        let listener: Listener = bind(&"127.0.0.1:0".parse().unwrap(), "recorder").unwrap();
        let Some(Listen::Tcp(address)) = listener.address() else {
            panic!("no address");
        };
        let (stop, stopped) = oneshot::channel();
        let thread = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            let stopped = async { stopped.await.unwrap_or_default() };
            runtime
                .block_on(serve(vec![listener], api, options, stopped))
                .unwrap();
        });
        Self {
            address,
            stop: Some(stop),
            thread: Some(thread),
        }
    }

    /// The server of another process.
    pub fn at(address: SocketAddr) -> Self {
        Self {
            address,
            stop: None,
            thread: None,
        }
    }

    /// A connection on which a request was sent. In HTTP/1.0, so that the reply ends with the connection.
    pub fn send(&self, method: &str, target: &str, headers: &str) -> BufReader<TcpStream> {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        let request = format!("{method} {target} HTTP/1.0\r\n{headers}\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        BufReader::new(stream)
    }

    pub fn request(&self, method: &str, target: &str, headers: &str) -> Reply {
        let mut stream = self.send(method, target, headers);
        let (status, headers) = head(&mut stream);
        let mut body = Vec::new();
        stream.read_to_end(&mut body).unwrap();
        Reply {
            status,
            headers,
            body,
        }
    }

    pub fn get(&self, target: &str) -> Reply {
        self.request("GET", target, "")
    }

    /// The JSON of a reply that must be one.
    #[track_caller]
    pub fn json(&self, target: &str) -> Value {
        self.status_json(target, 200)
    }

    /// The JSON of a reply with this status.
    #[track_caller]
    pub fn status_json(&self, target: &str, status: u16) -> Value {
        let reply = self.get(target);
        assert_eq!(reply.status, status, "{target}: {}", reply.text());
        assert_eq!(
            reply.header("content-type"),
            Some("application/json"),
            "{target}"
        );
        serde_json::from_slice(&reply.body).unwrap()
    }

    /// The text of a refusal.
    #[track_caller]
    pub fn refused(&self, target: &str, status: u16) -> String {
        let reply = self.get(target);
        assert_eq!(reply.status, status, "{target}: {}", reply.text());
        assert_eq!(
            reply.header("content-type"),
            Some("text/plain; charset=utf-8")
        );
        reply.text().trim_end().to_owned()
    }

    /// The `id`s of the objects of an array.
    #[track_caller]
    pub fn ids(&self, target: &str) -> Vec<u64> {
        ids(&self.json(target))
    }

    /// A stream of events.
    pub fn events(&self, target: &str, headers: &str) -> Events {
        let mut stream = self.send("GET", target, headers);
        let (status, headers) = head(&mut stream);
        assert_eq!(status, 200, "{target}");
        assert!(headers.contains(&("content-type".into(), "text/event-stream".into())));
        Events(stream)
    }
}

/// The `id`s of the objects of an array, or of the items of a list.
#[track_caller]
pub fn ids(rows: &Value) -> Vec<u64> {
    let rows = rows.get("items").unwrap_or(rows).as_array().unwrap();
    rows.iter().map(|row| row["id"].as_u64().unwrap()).collect()
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            assert!(thread.join().is_ok() || thread::panicking());
        }
    }
}

/// Events as they come.
pub struct Events(BufReader<TcpStream>);

/// An event: its name, its id and its data.
#[derive(Debug, Default)]
pub struct Event {
    pub name: String,
    pub id: String,
    pub data: Option<Value>,
}

impl Events {
    /// The next event; nothing at the end of the stream. Comments are skipped.
    pub fn next(&mut self) -> Option<Event> {
        let mut event = Event::default();
        let mut line = String::new();
        loop {
            line.clear();
            if self.0.read_line(&mut line).unwrap() == 0 {
                return None;
            }
            match line.trim_end_matches('\n').split_once(": ") {
                Some(("event", name)) => event.name = name.into(),
                Some(("id", id)) => event.id = id.into(),
                Some(("data", data)) => event.data = Some(serde_json::from_str(data).unwrap()),
                _ if line == "\n" && !event.id.is_empty() => return Some(event),
                _ => {}
            }
        }
    }

    /// The next event, of this name.
    #[track_caller]
    pub fn expect(&mut self, name: &str) -> (Value, String) {
        let event = self.next().unwrap();
        assert_eq!(event.name, name, "{event:?}");
        (event.data.unwrap(), event.id)
    }
}

fn head(stream: &mut BufReader<TcpStream>) -> (u16, Vec<(String, String)>) {
    let mut line = String::new();
    stream.read_line(&mut line).unwrap();
    let status = line.split(' ').nth(1).unwrap().parse().unwrap();
    let mut headers = Vec::new();
    loop {
        line.clear();
        stream.read_line(&mut line).unwrap();
        match line.trim_end().split_once(": ") {
            Some((name, value)) => headers.push((name.into(), value.into())),
            None => return (status, headers),
        }
    }
}
