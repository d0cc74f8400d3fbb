//! Sends the traces below a directory, also while they are written.

use super::tcp::Connection;
use super::udp::Train;
use super::{Parcel, Secret, Transport, seal, session_number};
use crate::feed::{Feeds, Next};
use backtrail_trace::remove_padding;
use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The time between two looks at traces that do not grow.
const PAUSE: Duration = Duration::from_millis(10);
/// The time after which metadata is sent again, for receivers that lost it.
const AGAIN: Duration = Duration::from_secs(2);
/// Packets read before they are sent.
const MOST_AT_ONCE: usize = 4 << 20;

/// What was sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// Streams.
    pub streams: u64,
    /// Packets.
    pub packets: u64,
    /// Their bytes, without padding.
    pub bytes: u64,
    /// Requests of the receiver for what it missed.
    pub repeated: u64,
}

/// Sends traces to a receiver.
#[derive(Debug)]
pub struct Sender {
    link: Link,
    session: u64,
    secret: Option<Secret>,
    /// The number of the next parcel.
    number: u64,
}

#[derive(Debug)]
enum Link {
    Tcp(Connection),
    Udp(Box<Train>),
}

impl Sender {
    /// Connects to a receiver at this address, which is `HOST:PORT`.
    ///
    /// # Errors
    ///
    /// Those of `connect(2)`.
    pub fn connect(transport: Transport, address: &str, secret: Option<Secret>) -> io::Result<Sender> {
        let session = session_number()?;
        let link = match transport {
            Transport::Tcp => Link::Tcp(Connection::open(address, session)?),
            Transport::Udp => Link::Udp(Box::new(Train::open(address, session)?)),
        };
        Ok(Sender {
            link,
            session,
            secret,
            number: 0,
        })
    }

    /// Sends the traces below the directory, packet by packet and without padding. As long as
    /// `go_on` returns true, it waits for more.
    ///
    /// # Errors
    ///
    /// The traces cannot be read, or the receiver cannot be reached or does not confirm.
    pub fn send(mut self, root: &Path, mut go_on: impl FnMut() -> bool) -> io::Result<Sent> {
        let mut feeds = Feeds::new(root);
        let mut sent = Sent::default();
        let mut metadata: HashMap<PathBuf, Vec<u8>> = HashMap::new();
        let mut counts: HashMap<(String, String), u64> = HashMap::new();
        let mut metadata_sent = Instant::now();
        let last = loop {
            // Before the look: what is there then is all.
            let is_last = !go_on();
            feeds.look_now()?;
            let mut parcels = Vec::new();
            let mut bytes = 0;
            for feed in &mut feeds.traces {
                let directory = name_of(feed.directory(), root);
                for index in 0..feed.streams.len() {
                    while bytes < MOST_AT_ONCE {
                        let Next::Packet(packet, _) = feed.next(index, None)? else {
                            break;
                        };
                        let stream = &feed.streams[index];
                        let mut data = stream.bytes(packet.offset, packet.packet_bits / 8)?;
                        remove_padding(feed.plan(), &packet, &mut data);
                        bytes += data.len();
                        let name = stream.path.file_name().unwrap_or_default();
                        let key = (directory.clone(), name.to_string_lossy().into_owned());
                        let count = counts.entry(key.clone()).or_insert(0);
                        parcels.push(Parcel::Packet {
                            directory: key.0,
                            stream: key.1,
                            count: *count,
                            bytes: data,
                        });
                        *count += 1;
                    }
                }
            }
            let any = !parcels.is_empty();
            // Classes are in the metadata before events are in the stream.
            feeds.look_now()?;
            let again = metadata_sent.elapsed() >= AGAIN || is_last;
            // Without this metadata and the end, all the rest is worth little.
            let last = self.number;
            if again {
                metadata_sent = Instant::now();
            }
            for feed in &feeds.traces {
                let known = metadata.entry(feed.directory().to_owned()).or_default();
                if *known != feed.file || (again && self.may_lose()) {
                    known.clone_from(&feed.file);
                    let directory = name_of(feed.directory(), root);
                    let bytes = feed.file.clone();
                    self.put(&Parcel::Metadata { directory, bytes })?;
                }
            }
            for parcel in parcels {
                if let Parcel::Packet { bytes, .. } = &parcel {
                    sent.packets += 1;
                    sent.bytes += bytes.len() as u64;
                }
                self.put(&parcel)?;
            }
            match (any, is_last) {
                (false, true) => break last,
                (false, false) => {
                    if let Link::Udp(train) = &mut self.link {
                        train.service()?;
                    }
                    sleep(PAUSE);
                }
                _ => {}
            }
        };
        sent.streams = counts.len() as u64;
        let streams = counts
            .into_iter()
            .map(|((directory, stream), count)| (directory, stream, count));
        self.put(&Parcel::End {
            streams: streams.collect(),
        })?;
        match self.link {
            Link::Tcp(connection) => connection.finish()?,
            Link::Udp(train) => sent.repeated = train.finish(last)?,
        }
        Ok(sent)
    }

    fn may_lose(&self) -> bool {
        matches!(self.link, Link::Udp(_))
    }

    fn put(&mut self, parcel: &Parcel) -> io::Result<()> {
        let sealed = seal::seal(self.secret.as_ref(), self.session, self.number, &parcel.encode())?;
        self.number += 1;
        match &mut self.link {
            Link::Tcp(connection) => connection.send(&sealed),
            Link::Udp(train) => train.send(sealed),
        }
    }
}

/// What a trace's directory is called there.
fn name_of(directory: &Path, root: &Path) -> String {
    directory
        .strip_prefix(root)
        .unwrap_or(directory)
        .to_string_lossy()
        .into_owned()
}
