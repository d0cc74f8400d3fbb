//! A request by HTTP/1.1 without TLS: one body is sent, and a bounded answer read within a time
//! limit.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// So much of an answer is read, with its headers.
const MOST: usize = 64 << 10;

/// An address that begins with `http://`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Url {
    host: String,
    port: u16,
    path: String,
}

/// Why a text is no [`Url`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BadUrl {
    /// It begins with `https://`.
    Tls,
    /// Anything else, in words.
    Wrong(&'static str),
}

/// What a server answered.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) status: u16,
    /// The reason phrase of the status.
    pub(super) reason: String,
    pub(super) content_type: String,
    pub(super) body: Vec<u8>,
}

impl Url {
    /// `path` is for a text without one.
    pub(super) fn parse(text: &str, path: &str) -> Result<Url, BadUrl> {
        // They would end the line of the request, or its part.
        if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(BadUrl::Wrong("a URL has no spaces and only ASCII characters"));
        }
        let (scheme, rest) = text.split_once("://").ok_or(BadUrl::Wrong("not a URL"))?;
        if scheme.eq_ignore_ascii_case("https") {
            return Err(BadUrl::Tls);
        }
        if !scheme.eq_ignore_ascii_case("http") {
            return Err(BadUrl::Wrong("not an http:// URL"));
        }
        let (rest, _) = rest.split_once('#').unwrap_or((rest, ""));
        let (authority, given) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
        if authority.contains('@') {
            return Err(BadUrl::Wrong("a user and a password in the URL are not supported"));
        }
        let (host, port) = authority.rsplit_once(':').ok_or(BadUrl::Wrong("no port"))?;
        let port = port.parse().ok().filter(|port| *port != 0);
        let port = port.ok_or(BadUrl::Wrong("bad port"))?;
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        if host.is_empty() || bare.is_none() && host.contains([':', '[', ']']) {
            return Err(BadUrl::Wrong("bad host"));
        }
        let path = match given.as_bytes() {
            [] | [b'/'] => path.to_owned(),
            [b'?', ..] => format!("{path}{given}"),
            _ => given.to_owned(),
        };
        Ok(Url {
            host: host.to_owned(),
            port,
            path,
        })
    }
}

/// When a request must have ended.
struct Deadline(Instant);

impl Deadline {
    fn left(&self) -> io::Result<Duration> {
        let left = self.0.saturating_duration_since(Instant::now());
        match left.is_zero() {
            true => Err(ErrorKind::TimedOut.into()),
            false => Ok(left),
        }
    }
}

/// Sends `body`, and reads the answer. Everything together takes at most `limit`; the error is
/// `TimedOut` if it took longer.
pub(super) fn post(url: &Url, content_type: &str, body: &[u8], limit: Duration) -> io::Result<Answer> {
    let now = Instant::now();
    let deadline = Deadline(now.checked_add(limit).ok_or(ErrorKind::InvalidInput)?);
    let exchanged = connect(url, &deadline).and_then(|mut stream| {
        let head = format!(
            "POST {} HTTP/1.1\r\nHost: {}:{}\r\nUser-Agent: backtrail/{}\r\nContent-Type: {content_type}\r\n\
             Content-Length: {}\r\nConnection: close\r\n\r\n",
            url.path,
            url.host,
            url.port,
            env!("CARGO_PKG_VERSION"),
            body.len()
        );
        let sent = send(&mut stream, head.as_bytes(), &deadline).and_then(|()| send(&mut stream, body, &deadline));
        // A server may refuse a request before it has read all of it.
        match (sent, receive(&mut stream, &deadline)) {
            (Err(error), Err(_)) => Err(error),
            (_, answer) => answer,
        }
    });
    exchanged.map_err(|error| match error.kind() {
        // What a socket reports when its own limit has passed.
        ErrorKind::WouldBlock => ErrorKind::TimedOut.into(),
        _ => error,
    })
}

/// Connects to the first of the host's addresses that answers.
fn connect(url: &Url, deadline: &Deadline) -> io::Result<TcpStream> {
    let mut failed = io::Error::new(ErrorKind::NotFound, "the host has no address");
    for address in addresses(url, deadline)? {
        match TcpStream::connect_timeout(&address, deadline.left()?) {
            Ok(stream) => return Ok(stream),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

/// The host's addresses. Another thread asks for them, because the C library sets no time limit.
fn addresses(url: &Url, deadline: &Deadline) -> io::Result<Vec<SocketAddr>> {
    let (give, take) = mpsc::channel();
    let host = url.host.trim_matches(['[', ']']).to_owned();
    let port = url.port;
    thread::Builder::new().spawn(move || {
        let found = (host.as_str(), port).to_socket_addrs().map(Iterator::collect);
        // Nobody waits any longer.
        let _ = give.send(found);
    })?;
    take.recv_timeout(deadline.left()?)
        .map_err(|_| io::Error::from(ErrorKind::TimedOut))?
}

fn send(stream: &mut TcpStream, mut bytes: &[u8], deadline: &Deadline) -> io::Result<()> {
    while !bytes.is_empty() {
        stream.set_write_timeout(Some(deadline.left()?))?;
        match stream.write(bytes) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(n) => bytes = &bytes[n..],
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn receive(stream: &mut TcpStream, deadline: &Deadline) -> io::Result<Answer> {
    let (mut text, mut buffer) = (Vec::new(), [0; 4096]);
    loop {
        let (answer, is_whole) = parse(&text)?;
        if is_whole {
            return Ok(answer);
        }
        stream.set_read_timeout(Some(deadline.left()?))?;
        let room = buffer.len().min(MOST - text.len());
        let read = match stream.read(&mut buffer[..room]) {
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            // A server that has not read all closes the connection this way, after its answer.
            Err(error) if error.kind() == ErrorKind::ConnectionReset && answer.status != 0 => 0,
            read => read?,
        };
        match read {
            // Where the answer is longer than what is kept of it, the rest is not needed.
            0 if answer.status != 0 => return Ok(answer),
            0 if room == 0 => return Err(bad("the headers of the answer are too long")),
            0 => return Err(ErrorKind::UnexpectedEof.into()),
            n => text.extend_from_slice(&buffer[..n]),
        }
    }
}

fn bad(what: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, what)
}

/// What there is of an answer, and whether that is all. The status is 0 until its headers are
/// complete.
fn parse(mut text: &[u8]) -> io::Result<(Answer, bool)> {
    loop {
        let start = &text[..text.len().min(5)];
        if !b"HTTP/".starts_with(start) {
            return Err(bad("the answer is not HTTP"));
        }
        let Some(end) = text.windows(4).position(|bytes| bytes == b"\r\n\r\n") else {
            return Ok((Answer::default(), false));
        };
        let (head, body) = (String::from_utf8_lossy(&text[..end]), &text[end + 4..]);
        let mut lines = head.split("\r\n");
        let mut words = lines.next().unwrap_or_default().splitn(3, ' ').skip(1);
        let status = words.next().and_then(|word| word.parse().ok());
        let status: u16 = status
            .filter(|status| (100..1000).contains(status))
            .ok_or_else(|| bad("the answer has no HTTP status"))?;
        // These precede the answer itself.
        if status < 200 {
            text = body;
            continue;
        }
        let mut answer = Answer {
            status,
            reason: words.next().unwrap_or_default().trim().to_owned(),
            ..Answer::default()
        };
        let (mut length, mut is_chunked) = (None, false);
        for (name, value) in lines.filter_map(|line| line.split_once(':')) {
            let value = value.trim();
            match name.to_ascii_lowercase().as_str() {
                "content-type" => value.clone_into(&mut answer.content_type),
                "content-length" => length = value.parse().ok(),
                "transfer-encoding" => is_chunked = value.eq_ignore_ascii_case("chunked"),
                _ => {}
            }
        }
        let is_whole;
        (answer.body, is_whole) = match (is_chunked, length) {
            (true, _) => chunks(body),
            (_, Some(length)) => (body[..body.len().min(length)].to_vec(), body.len() >= length),
            // It ends with the connection.
            _ => (body.to_vec(), false),
        };
        return Ok((answer, is_whole));
    }
}

/// The content of a body in chunks, and whether its end is there.
fn chunks(mut text: &[u8]) -> (Vec<u8>, bool) {
    let mut content = Vec::new();
    while let Some(end) = text.windows(2).position(|bytes| bytes == b"\r\n") {
        let size = str::from_utf8(&text[..end]).unwrap_or_default();
        let size = size.split(';').next().unwrap_or_default().trim();
        let Ok(size @ 1..) = usize::from_str_radix(size, 16) else {
            // The last one, or something that is no chunk.
            return (content, true);
        };
        let rest = &text[end + 2..];
        content.extend_from_slice(&rest[..rest.len().min(size)]);
        let Some(next) = size.checked_add(2).and_then(|size| rest.get(size..)) else {
            break;
        };
        text = next;
    }
    (content, false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_has_a_host_a_port_and_a_path() {
        let url = |host: &str, port, path: &str| Url {
            host: host.to_owned(),
            port,
            path: path.to_owned(),
        };
        for (text, parsed) in [
            ("http://a.b:4318", url("a.b", 4318, "/p")),
            ("HTTP://a.b:4318/", url("a.b", 4318, "/p")),
            ("http://a:1?x=/", url("a", 1, "/p?x=/")),
            ("http://[::1]:80/v1/x?y=z#part", url("[::1]", 80, "/v1/x?y=z")),
        ] {
            assert_eq!(Url::parse(text, "/p"), Ok(parsed), "{text}");
        }
        assert_eq!(Url::parse("https://a:1", "/p"), Err(BadUrl::Tls));
        for text in [
            "",
            "a:1",
            "ftp://a:1",
            "http://",
            "http://a",
            "http://:1",
            "http://a:0",
            "http://a:65536",
            "http://::1:80",
            "http://[::1]",
            "http://u:p@a:1",
            "http://a:1/x y",
            "http://a:1/\r\nHost: b",
            "http://ä:1",
        ] {
            assert!(matches!(Url::parse(text, "/p"), Err(BadUrl::Wrong(_))), "{text}");
        }
    }

    #[test]
    fn an_answer_is_whole_when_all_of_it_is_there() {
        for (text, status, body) in [
            ("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc", 200, "abc"),
            ("HTTP/1.1 204 No Content\r\ncontent-length:0\r\n\r\n", 204, ""),
            (
                "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 400\r\nContent-Length: 1\r\n\r\na",
                400,
                "a",
            ),
            (
                "HTTP/1.1 500 No\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1;x\r\nc\r\n0\r\n\r\n",
                500,
                "abc",
            ),
        ] {
            let (answer, is_whole) = parse(text.as_bytes()).unwrap();
            assert!(is_whole, "{text}");
            assert_eq!(
                (answer.status, answer.body.as_slice()),
                (status, body.as_bytes()),
                "{text}"
            );
            for end in 0..text.len() - 4 {
                let part = parse(&text.as_bytes()[..end]).unwrap();
                assert!(!part.1, "{:?}", &text[..end]);
            }
        }
    }

    #[test]
    fn damaged_answers_are_errors_or_end() {
        for text in [
            "SSH-2.0",
            "HTTP/1.1 \r\n\r\n",
            "HTTP/1.1 x\r\n\r\n",
            "HTTP/1.1 7 a\r\n\r\n",
        ] {
            assert!(parse(text.as_bytes()).is_err(), "{text}");
        }
        for chunk in ["ffffffffffffffff\r\nab", "-1\r\nab", "\r\n", "zz\r\n"] {
            let (content, _) = chunks(chunk.as_bytes());
            assert!(content.len() <= 2, "{chunk}");
        }
    }
}
