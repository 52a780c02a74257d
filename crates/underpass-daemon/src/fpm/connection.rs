//! One TCP connection of a zebra.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Instant;

use nix::sys::epoll::EpollFlags;
use nix::sys::socket::{setsockopt, sockopt};
use underpass_control::Router;
use underpass_netlink::fpm::{Decoder, Malformed, write_frame};
use underpass_netlink::messages;

use super::program::Programmer;

/// Bytes read at a time.
const READ: usize = 64 << 10;
/// Reads before others have their turn.
const READS: usize = 4;
/// Bytes that wait for a zebra that does not read before it is not read from either.
const QUEUE: usize = 1 << 20;
/// Seconds of silence before a peer is asked whether it is there; and between questions, of which the
/// kernel's usual number must go unanswered.
const SILENCE: u32 = 30;

/// Why a connection is over.
#[derive(Debug, thiserror::Error)]
pub(super) enum Gone {
    #[error("it was closed")]
    Closed,
    #[error("it sent {0}")]
    Malformed(#[from] Malformed),
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

pub(super) struct Connection {
    pub stream: TcpStream,
    pub peer: SocketAddr,
    decoder: Decoder,
    /// Answers, of which the first `sent` bytes have been sent.
    answers: Vec<u8>,
    sent: usize,
}

impl Connection {
    pub fn new(stream: TcpStream, peer: SocketAddr) -> std::io::Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        setsockopt(&stream, sockopt::KeepAlive, &true)?;
        setsockopt(&stream, sockopt::TcpKeepIdle, &SILENCE)?;
        setsockopt(&stream, sockopt::TcpKeepInterval, &SILENCE)?;
        Ok(Self { stream, peer, decoder: Decoder::default(), answers: Vec::new(), sent: 0 })
    }

    /// Whether the peer is in the router's own network namespace: no packet of a loopback address leaves it.
    pub fn is_local(&self) -> bool {
        self.peer.ip().to_canonical().is_loopback()
    }

    fn waiting(&self) -> usize {
        self.answers.len() - self.sent
    }

    /// What it waits for.
    pub fn interest(&self) -> EpollFlags {
        match self.waiting() {
            0 => EpollFlags::EPOLLIN,
            1..QUEUE => EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT,
            QUEUE.. => EpollFlags::EPOLLOUT,
        }
    }

    /// Reads, programs and answers, as far as that goes without waiting.
    pub fn serve(&mut self, router: &mut Router, programmer: &mut Programmer) -> Result<(), Gone> {
        self.flush()?;
        let mut bytes = [0; READ];
        for _ in 0..READS {
            if self.waiting() >= QUEUE {
                break;
            }
            let received = match self.stream.read(&mut bytes) {
                Ok(0) => return Err(Gone::Closed),
                Ok(received) => received,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(error.into()),
            };
            self.decoder.push(&bytes[..received]);
            let now = Instant::now();
            while let Some(frame) = self.decoder.frame()? {
                for message in messages(frame) {
                    if let Some(answer) = programmer.program(router, &message, now) {
                        // It came in a frame, so it fits one.
                        let _ = write_frame(&mut self.answers, &answer);
                    }
                }
            }
            self.flush()?;
        }
        Ok(())
    }

    /// Adds an answer to those that wait to be sent.
    pub fn answer(&mut self, answer: &[u8]) {
        // It came in a frame, so it fits one.
        let _ = write_frame(&mut self.answers, answer);
    }

    fn flush(&mut self) -> Result<(), Gone> {
        while self.waiting() > 0 {
            match self.stream.write(&self.answers[self.sent..]) {
                Ok(0) => return Err(Gone::Closed),
                Ok(sent) => self.sent += sent,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        if self.sent > QUEUE || self.waiting() == 0 {
            self.answers.drain(..self.sent);
            self.sent = 0;
        }
        Ok(())
    }
}
