//! The messages between a test and the processes that it drives.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};

/// Words of a request and of a reply; further bytes follow them.
pub(crate) const WORDS: usize = 24;
pub(crate) type Words = [u64; WORDS];

/// The requests to a process.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Op {
    Address,
    Connect,
    Met,
    Alloc,
    Free,
    Fill,
    Check,
    Send,
    Sent,
    Receive,
    ReceiveOwn,
    Refuse,
    Received,
    Waiting,
    Pump,
    Drink,
    Keep,
    Ask,
    Fail,
    Later,
    Manual,
    Progress,
    Left,
    Close,
    Look,
    Spawn,
    Descriptors,
    Places,
}

pub(crate) const OPS: [Op; 28] = [
    Op::Address,
    Op::Connect,
    Op::Met,
    Op::Alloc,
    Op::Free,
    Op::Fill,
    Op::Check,
    Op::Send,
    Op::Sent,
    Op::Receive,
    Op::ReceiveOwn,
    Op::Refuse,
    Op::Received,
    Op::Waiting,
    Op::Pump,
    Op::Drink,
    Op::Keep,
    Op::Ask,
    Op::Fail,
    Op::Later,
    Op::Manual,
    Op::Progress,
    Op::Left,
    Op::Close,
    Op::Look,
    Op::Spawn,
    Op::Descriptors,
    Op::Places,
];

/// All counts of a process.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Look {
    pub(crate) exports: u64,
    pub(crate) unexports: u64,
    pub(crate) maps: u64,
    pub(crate) unmaps: u64,
    pub(crate) map_failures: u64,
    pub(crate) unmap_failures: u64,
    pub(crate) leaks: u64,
    pub(crate) broken: u64,
    pub(crate) hits: u64,
    pub(crate) announced: u64,
    pub(crate) stale: u64,
    pub(crate) fallbacks: u64,
    pub(crate) live: u64,
    pub(crate) live_bytes: u64,
    pub(crate) passing: u64,
    pub(crate) zombies: u64,
    /// Mappings of the memory file of the device that the kernel lists for the process.
    pub(crate) mappings: u64,
    pub(crate) descriptors: u64,
    pub(crate) received: u64,
    pub(crate) export_failures: u64,
}

impl Look {
    pub(crate) fn words(self) -> Vec<u64> {
        vec![
            self.exports,
            self.unexports,
            self.maps,
            self.unmaps,
            self.map_failures,
            self.unmap_failures,
            self.leaks,
            self.broken,
            self.hits,
            self.announced,
            self.stale,
            self.fallbacks,
            self.live,
            self.live_bytes,
            self.passing,
            self.zombies,
            self.mappings,
            self.descriptors,
            self.received,
            self.export_failures,
        ]
    }

    pub(crate) fn of(words: &[u64]) -> Self {
        Self {
            exports: words[0],
            unexports: words[1],
            maps: words[2],
            unmaps: words[3],
            map_failures: words[4],
            unmap_failures: words[5],
            leaks: words[6],
            broken: words[7],
            hits: words[8],
            announced: words[9],
            stale: words[10],
            fallbacks: words[11],
            live: words[12],
            live_bytes: words[13],
            passing: words[14],
            zombies: words[15],
            mappings: words[16],
            descriptors: words[17],
            received: words[18],
            export_failures: words[19],
        }
    }
}

pub(crate) fn send(
    socket: impl AsFd,
    words: &[u64],
    tail: &[u8],
    fd: Option<&OwnedFd>,
) -> rustix::io::Result<()> {
    let mut all = [0; WORDS];
    all[..words.len()].copy_from_slice(words);
    let mut bytes: Vec<u8> = all.iter().flat_map(|word| word.to_le_bytes()).collect();
    bytes.extend_from_slice(tail);
    let fds: Vec<_> = fd.into_iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
    }
    rustix::net::sendmsg(socket, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL).map(drop)
}

/// A received message.
#[derive(Debug)]
pub(crate) struct Parcel {
    pub(crate) words: Words,
    pub(crate) tail: Vec<u8>,
    pub(crate) fd: Option<OwnedFd>,
}

/// Receives a message. Returns `Ok(None)` if none has arrived and the call is not to wait.
pub(crate) fn receive(socket: impl AsFd, wait: bool) -> Result<Option<Parcel>, String> {
    let mut bytes = vec![0; 4096];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let into = &mut [IoSliceMut::new(&mut bytes)];
    let flags = if wait { RecvFlags::empty() } else { RecvFlags::DONTWAIT } | RecvFlags::CMSG_CLOEXEC;
    let got = match rustix::net::recvmsg(socket, into, &mut control, flags) {
        Ok(got) => got.bytes,
        Err(rustix::io::Errno::AGAIN) if !wait => return Ok(None),
        Err(error) => return Err(error.to_string()),
    };
    let fd = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    if got < 8 * WORDS {
        return Err("the other end has closed the socket".to_owned());
    }
    bytes.truncate(got);
    let tail = bytes.split_off(8 * WORDS);
    let words = std::array::from_fn(|at| u64::from_le_bytes(bytes[8 * at..8 * at + 8].try_into().unwrap()));
    Ok(Some(Parcel { words, tail, fd }))
}
