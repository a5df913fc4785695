//! Plain HTTP on another port: traffic of the same process that is not P2P, among it the node's RPC.

use std::io::{Read, Result, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use crate::rpc::Rpc;

const TIMEOUT: Duration = Duration::from_secs(5);

/// Serves HTTP on a thread of its own; returns the address.
pub fn serve(port: u16, rpc: Arc<Rpc>) -> Result<SocketAddr> {
    let listener = TcpListener::bind(("127.0.0.1", port))?;
    let address = listener.local_addr()?;
    std::thread::spawn(move || {
        for (count, stream) in listener.incoming().enumerate() {
            // The client notices.
            let _ = stream.and_then(|stream| answer(stream, count, &rpc));
        }
    });
    Ok(address)
}

fn answer(mut stream: TcpStream, count: usize, rpc: &Rpc) -> Result<()> {
    stream.set_read_timeout(Some(TIMEOUT))?;
    let (mut request, mut room) = (Vec::new(), [0; 1024]);
    while !request.ends_with(b"\r\n\r\n") && request.len() < 16 << 10 {
        match stream.read(&mut room)? {
            0 => return Ok(()),
            read => request.extend_from_slice(&room[..read]),
        }
    }
    let line = String::from_utf8_lossy(&request);
    let mut words = line.split_whitespace();
    let (method, path) = (words.next(), words.next());
    if let Some(value) = rpc.answer(method.unwrap_or_default(), path.unwrap_or_default()) {
        return write_chunked(stream, &value.to_string());
    }
    let body = "{\"not\": \"p2p\"}\n".repeat(1 + count * 97 % 2000);
    let length = body.len();
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    stream.write_all((head + &body).as_bytes())
}

/// A response in two chunks; Octez sends its responses in chunks.
fn write_chunked(mut stream: TcpStream, body: &str) -> Result<()> {
    let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n";
    let (first, rest) = body.split_at(1);
    let size = rest.len();
    write!(
        stream,
        "{head}1\r\n{first}\r\n{size:x}\r\n{rest}\r\n0\r\n\r\n"
    )
}

/// Asks another server; returns the number of bytes of the response.
pub fn get(address: &str) -> Result<usize> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    write!(
        stream,
        "GET /chains/main/blocks/head HTTP/1.1\r\nHost: {address}\r\n\r\n"
    )?;
    let mut response = Vec::new();
    stream.read_to_end(&mut response)
}
