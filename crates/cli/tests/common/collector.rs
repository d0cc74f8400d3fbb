//! A server that answers each request by HTTP the same: to a recording, or for a debug file.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{self, Receiver};
use std::thread;

use super::LIMIT;

/// It ends with the test's process.
pub(crate) struct Collector {
    pub(crate) address: SocketAddr,
    requests: Receiver<(String, Vec<u8>)>,
}

impl Collector {
    pub(crate) fn start(address: &str, status: &str, content_type: &str, body: &[u8]) -> Collector {
        let listener = TcpListener::bind(address).expect("a port");
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        let answer = [head.as_bytes(), body].concat();
        let address = listener.local_addr().expect("it is bound");
        let (give, requests) = mpsc::channel();
        thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let Some(request) = receive(&stream) else { continue };
                let _ = stream.write_all(&answer);
                let _ = give.send(request);
            }
        });
        Collector { address, requests }
    }

    /// The headers and the body of the next request.
    pub(crate) fn received(&self) -> (String, Vec<u8>) {
        self.requests.recv_timeout(LIMIT).expect("a request")
    }
}

fn receive(stream: &TcpStream) -> Option<(String, Vec<u8>)> {
    let (mut reader, mut head) = (BufReader::new(stream), String::new());
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head).ok()? == 0 {
            return None;
        }
    }
    let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: "));
    let mut body = vec![0; length.unwrap_or("0").parse().ok()?];
    reader.read_exact(&mut body).ok()?;
    Some((head, body))
}
