//! Servers on this machine for memprof's HTTP clients, with and without TLS.

#![allow(dead_code, reason = "each test binary uses its own part")]

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::thread;

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

/// A connection.
pub trait Stream: Read + Write {}

impl<S: Read + Write> Stream for S {}

/// Serves a connection.
pub type Serve = Box<dyn Fn(&mut dyn Stream) -> io::Result<()> + Send + Sync>;

/// Serves each connection on a thread of its own; returns the URL.
pub fn listen(serve: Serve) -> String {
    listen_as("http", |stream| stream, serve)
}

/// The same over TLS, with the certificate and the key of these PEM files.
pub fn listen_tls(certificate: &Path, key: &Path, serve: Serve) -> String {
    let certificates = CertificateDer::pem_file_iter(certificate).unwrap();
    let certificates = certificates.map(Result::unwrap).collect();
    let key = PrivateKeyDer::from_pem_file(key).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(certificates, key)
        .unwrap();
    let config = Arc::new(config);
    let over = move |stream| {
        let connection = ServerConnection::new(Arc::clone(&config)).unwrap();
        StreamOwned::new(connection, stream)
    };
    listen_as("https", over, serve)
}

fn listen_as<S: Stream>(
    scheme: &str,
    over: impl Fn(TcpStream) -> S + Clone + Send + 'static,
    serve: Serve,
) -> String {
    let serve = Arc::new(serve);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("{scheme}://{}", listener.local_addr().unwrap());
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (over, serve) = (over.clone(), Arc::clone(&serve));
            thread::spawn(move || {
                // The client may hang up.
                let _ = serve(&mut over(stream.unwrap()));
            });
        }
    });
    url
}

/// Reads the header of a request; `None` if the client has hung up before.
pub fn read_head(stream: &mut dyn Stream) -> io::Result<Option<String>> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read(&mut byte)? {
            0 => return Ok(None),
            _ => head.push(byte[0]),
        }
    }
    Ok(Some(String::from_utf8(head).unwrap()))
}

fn openssl(args: &[&str]) {
    let out = Command::new("openssl").args(args).output().unwrap();
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{said}");
}

/// Makes a certificate authority, and a certificate of it for 127.0.0.1. Returns the authority's certificate, the other
/// one and its key; `None` if there is no openssl.
pub fn certificates(dir: &Path) -> Option<[PathBuf; 3]> {
    Command::new("openssl").arg("version").output().ok()?;
    let paths = ["ca.pem", "ca.key", "cert.pem", "cert.key"].map(|name| dir.join(name));
    let [ca, ca_key, cert, key] = paths.each_ref().map(|path| path.to_str().unwrap());
    let new = [
        "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
    ];
    let authority = ["-subj", "/CN=authority", "-keyout", ca_key, "-out", ca];
    openssl(&[&new[..], &authority].concat());
    let of_server = ["-subj", "/CN=server", "-keyout", key, "-out", cert];
    let name = ["-addext", "subjectAltName=IP:127.0.0.1"];
    let end = ["-addext", "basicConstraints=critical,CA:FALSE"];
    let signed = ["-CA", ca, "-CAkey", ca_key];
    openssl(&[&new[..], &of_server, &name, &end, &signed].concat());
    let [ca, _, cert, key] = paths;
    Some([ca, cert, key])
}
