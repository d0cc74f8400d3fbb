//! Requests and answers through a socket.
//!
//! A request is the number of its job (1), the length of what follows (8, little-endian), and that;
//! its open files come with its first byte. An answer is the length (8) and the bytes.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
};

/// The most files of a request.
const MOST_FILES: usize = 4;
/// Longer answers make no sense: the table of the largest known library takes a twentieth.
const LONGEST: u64 = 256 << 20;
const HEADER: usize = 9;

/// When an answer is too late.
pub(super) struct Deadline(Instant);

impl Deadline {
    pub(super) fn after(time: Duration) -> Deadline {
        Deadline(Instant::now() + time)
    }

    fn left(&self) -> Result<Duration, Broken> {
        let left = self.0.saturating_duration_since(Instant::now());
        (!left.is_zero()).then_some(left).ok_or(Broken::Late)
    }
}

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Broken {
    /// The other side was gone before it answered.
    BeforeAnswer,
    /// It ended within its answer, or the answer makes no sense.
    Answer,
    /// The deadline has passed.
    Late,
}

/// Sends a request, and waits for the answer.
pub(super) fn ask(
    socket: &UnixStream,
    job: u8,
    files: &[&File],
    request: &[u8],
    deadline: &Deadline,
) -> Result<Vec<u8>, Broken> {
    let gone = |error: io::Error| match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Broken::Late,
        _ => Broken::BeforeAnswer,
    };
    socket.set_write_timeout(Some(deadline.left()?)).map_err(gone)?;
    send(socket, job, files, request).map_err(gone)?;
    let mut len = [0; 8];
    receive(socket, &mut len, deadline).map_err(|(_, broken)| broken)?;
    let len = Some(u64::from_le_bytes(len)).filter(|len| *len <= LONGEST);
    let mut answer = vec![0; len.ok_or(Broken::Answer)? as usize];
    receive(socket, &mut answer, deadline).map_err(|(_, broken)| match broken {
        Broken::BeforeAnswer => Broken::Answer,
        other => other,
    })?;
    Ok(answer)
}

fn send(socket: &UnixStream, job: u8, files: &[&File], request: &[u8]) -> io::Result<()> {
    let mut header = [job; HEADER];
    header[1..].copy_from_slice(&(request.len() as u64).to_le_bytes());
    let files: Vec<BorrowedFd<'_>> = files.iter().take(MOST_FILES).map(|file| file.as_fd()).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FILES))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&files));
    let sent = rustix::net::sendmsg(socket, &[IoSlice::new(&header)], &mut control, SendFlags::NOSIGNAL)?;
    // A few bytes are sent at once; if not, the rest follows without the files.
    let mut socket = socket;
    socket.write_all(&header[sent..])?;
    socket.write_all(request)
}

/// Fills a buffer; or returns how much of it was filled, and why not more.
fn receive(mut socket: &UnixStream, buffer: &mut [u8], deadline: &Deadline) -> Result<(), (usize, Broken)> {
    let mut done = 0;
    while done < buffer.len() {
        let left = deadline.left().map_err(|late| (done, late))?;
        let broken = if done == 0 {
            Broken::BeforeAnswer
        } else {
            Broken::Answer
        };
        socket.set_read_timeout(Some(left)).map_err(|_| (done, broken))?;
        match socket.read(&mut buffer[done..]) {
            Ok(0) => return Err((done, broken)),
            Ok(got) => done += got,
            Err(error) => match error.kind() {
                io::ErrorKind::Interrupted => {}
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => return Err((done, Broken::Late)),
                _ => return Err((done, broken)),
            },
        }
    }
    Ok(())
}

/// A request: its job, files and bytes.
pub(super) type Request = (u8, Vec<File>, Vec<u8>);

/// The next request. `None` if there is no more.
pub(super) fn next(socket: &UnixStream) -> io::Result<Option<Request>> {
    let mut header = [0; HEADER];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FILES))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = rustix::io::retry_on_intr(|| {
        rustix::net::recvmsg(
            socket,
            &mut [IoSliceMut::new(&mut header)],
            &mut control,
            RecvFlags::CMSG_CLOEXEC,
        )
    })?;
    if received.bytes == 0 {
        return Ok(None);
    }
    let files = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(files) => Some(files),
        _ => None,
    });
    let files = files.flatten().map(File::from).collect();
    let mut socket = socket;
    socket.read_exact(&mut header[received.bytes..])?;
    let len = header.last_chunk::<8>().map_or(0, |len| u64::from_le_bytes(*len));
    // It comes from whoever has started this process.
    let mut request = vec![0; len as usize];
    socket.read_exact(&mut request)?;
    Ok(Some((header[0], files, request)))
}

/// Sends an answer.
pub(super) fn answer(mut socket: &UnixStream, answer: &[u8]) -> io::Result<()> {
    socket.write_all(&(answer.len() as u64).to_le_bytes())?;
    socket.write_all(answer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Shutdown;
    use std::thread;

    #[test]
    fn requests_and_answers_arrive_with_their_files() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let long = vec![7; 3 << 20];
        let worker = thread::spawn(move || {
            let (job, files, request) = next(&theirs).unwrap().unwrap();
            assert_eq!((job, files.len(), request.len()), (2, 2, 3 << 20));
            let own = File::open("/proc/self/maps").unwrap();
            assert_eq!(
                rustix::fs::fstat(&files[0]).unwrap().st_ino,
                rustix::fs::fstat(&files[1]).unwrap().st_ino
            );
            drop(own);
            answer(&theirs, &request[..2 << 20]).unwrap();
            theirs
        });
        let file = File::open("/proc/self/exe").unwrap();
        let deadline = Deadline::after(Duration::from_secs(60));
        let answered = ask(&ours, 2, &[&file, &file], &long, &deadline).unwrap();
        assert_eq!(answered, long[..2 << 20]);
        let theirs = worker.join().unwrap();
        // No answer in time, a part of one, none.
        let soon = Deadline::after(Duration::from_millis(30));
        assert_eq!(ask(&ours, 1, &[], b"x", &soon), Err(Broken::Late));
        (&theirs).write_all(&9_u64.to_le_bytes()).unwrap();
        // Closing is not enough: a process that another test is just starting may hold it open.
        theirs.shutdown(Shutdown::Both).unwrap();
        assert_eq!(ask(&ours, 1, &[], b"x", &deadline), Err(Broken::BeforeAnswer));
    }

    #[test]
    fn senseless_lengths_are_refused() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (&theirs).write_all(&u64::MAX.to_le_bytes()).unwrap();
        let deadline = Deadline::after(Duration::from_secs(60));
        assert_eq!(ask(&ours, 1, &[], b"", &deadline), Err(Broken::Answer));
    }
}
