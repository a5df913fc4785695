//! Plain HTTP on another port: traffic of the same process that is not P2P.

use std::io::{Read, Result, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(5);

/// Serves HTTP on a thread of its own; returns the address.
pub fn serve(port: u16) -> Result<SocketAddr> {
    let listener = TcpListener::bind(("127.0.0.1", port))?;
    let address = listener.local_addr()?;
    std::thread::spawn(move || {
        for (count, stream) in listener.incoming().enumerate() {
            // The client notices.
            let _ = stream.and_then(|stream| answer(stream, count));
        }
    });
    Ok(address)
}

fn answer(mut stream: TcpStream, count: usize) -> Result<()> {
    stream.set_read_timeout(Some(TIMEOUT))?;
    let (mut request, mut room) = (Vec::new(), [0; 1024]);
    while !request.ends_with(b"\r\n\r\n") && request.len() < 16 << 10 {
        match stream.read(&mut room)? {
            0 => return Ok(()),
            read => request.extend_from_slice(&room[..read]),
        }
    }
    let body = "{\"not\": \"p2p\"}\n".repeat(1 + count * 97 % 2000);
    let length = body.len();
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    stream.write_all((head + &body).as_bytes())
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
