//! Bytes that are no valid HTTP request. A server refuses them with status 400, or closes the connection.

pub const INVALID_REQUESTS: [&[u8]; 12] = [
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"GET\r\n\r\n",
    b"GET /v1/tree\r\n\r\n",
    b"GET  /v1/tree  HTTP/1.1\r\n\r\n",
    b"GET /v1/tree HTTP/9.9\r\nHost: localhost\r\n\r\n",
    b"GET /v1/tree HTTP/1.1\r\nHost localhost\r\n\r\n",
    b"GET /v1/tree HTTP/1.1\r\nHost: localhost\r\nContent-Length: x\r\n\r\n",
    b"GET /v1/tree\0 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"\r\n\r\n",
    b"\r\n\r\n\r\n\r\n",
    b"\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
];
