//! The channel between the test and the processes that it starts: frames on a socket pair that each process has as its
//! standard input. Used by the world and by the processes; does not interpret frames.

use std::io::{Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use trunkline_proto::wire::dial::CARD_BYTES;

/// A process that sends nothing for this long has failed.
const LIMIT: Duration = Duration::from_secs(30);

/// One end.
pub(crate) struct TestChannel(UnixStream);

impl TestChannel {
    pub(crate) fn new(stream: UnixStream) -> Self {
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        Self(stream)
    }

    /// The end that this process was started with.
    pub(crate) fn of_this_process() -> Self {
        Self::new(UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned().unwrap()))
    }

    /// Removes the read timeout: from now on the other end may take any time.
    pub(crate) fn wait_for_ever(&self) {
        self.0.set_read_timeout(None).unwrap();
    }

    #[track_caller]
    pub(crate) fn send(&mut self, bytes: &[u8]) {
        let len = (bytes.len() as u32).to_le_bytes();
        self.0.write_all(&[&len, bytes].concat()).unwrap();
    }

    pub(crate) fn send_numbers(&mut self, numbers: &[u64]) {
        self.send(&numbers.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<_>>());
    }

    #[track_caller]
    pub(crate) fn receive(&mut self) -> Vec<u8> {
        let mut len = [0; 4];
        self.0.read_exact(&mut len).expect("the other process sends a frame in time");
        let mut bytes = vec![0; u32::from_le_bytes(len) as usize];
        self.0.read_exact(&mut bytes).expect("the other process completes its frame");
        bytes
    }

    #[track_caller]
    pub(crate) fn receive_numbers(&mut self) -> Vec<u64> {
        self.receive().as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect()
    }

    /// The cards of all members of the job.
    pub(crate) fn receive_cards(&mut self) -> [[u8; CARD_BYTES]; 3] {
        std::array::from_fn(|_| self.receive().try_into().unwrap())
    }

    /// Receives a frame, if one has arrived.
    pub(crate) fn try_receive(&mut self) -> Option<Vec<u8>> {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let waits = poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&now)).unwrap() > 0;
        waits.then(|| self.receive())
    }
}
