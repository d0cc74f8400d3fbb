//! A network that loses, repeats and reorders datagrams.

use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::text::Random;

/// What a network does to datagrams.
#[derive(Clone, Copy, Debug, Default)]
pub struct Network {
    /// Percentage of datagrams that are lost, in either direction.
    pub lost_percent: usize,
    /// Percentage that come twice, and percentage that come after later ones.
    pub mixed_percent: usize,
    /// What the receiver says does not arrive.
    pub one_way: bool,
}

/// What it did.
#[derive(Clone, Copy, Debug, Default)]
pub struct Passed {
    /// Datagrams of the sender.
    pub sent: u64,
    /// Those that were lost.
    pub lost: u64,
}

impl Network {
    /// Passes datagrams that arrive at `address` on to the receiver, and its answers back, until
    /// `is_over`.
    ///
    /// # Panics
    /// If there are no sockets.
    pub fn relay(self, address: &UdpSocket, receiver: &str, is_over: &AtomicBool) -> Passed {
        let mut random = Random::new(17);
        let mut chance = move |percent: usize| random.below(100) < percent;
        let out = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        out.connect(receiver).expect("a local address");
        out.set_nonblocking(true).expect("an open socket");
        let pause = Some(Duration::from_millis(1));
        address.set_read_timeout(pause).expect("an open socket");
        let mut buffer = [0; 2048];
        let (mut sender, mut late) = (None, Vec::<Vec<u8>>::new());
        let mut passed = Passed::default();
        // What cannot be sent is lost.
        let send = |datagram: &[u8]| _ = out.send(datagram);
        while !is_over.load(Ordering::Relaxed) {
            if let Ok((length, from)) = address.recv_from(&mut buffer) {
                sender = Some(from);
                passed.sent += 1;
                let Some(datagram) = buffer.get(..length) else { continue };
                if chance(self.lost_percent) {
                    passed.lost += 1;
                    continue;
                }
                if chance(self.mixed_percent) {
                    late.push(datagram.to_vec());
                    continue;
                }
                send(datagram);
                if chance(self.mixed_percent) {
                    send(datagram);
                }
                if late.len() > 5 {
                    late.drain(..).rev().for_each(|late| send(&late));
                }
            } else {
                late.drain(..).rev().for_each(|late| send(&late));
            }
            while let (Ok(length), Some(sender)) = (out.recv(&mut buffer), sender) {
                if !self.one_way && !chance(self.lost_percent) {
                    let _ = address.send_to(&buffer[..length], sender);
                }
            }
        }
        passed
    }
}
