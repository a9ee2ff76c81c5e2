//! The sending side of a comm: reads clear-to-send records, and decides how to send each message. The engine calls it in isend; it
//! never posts an operation.

use alloc::boxed::Box;

use crate::comm::MessageFault;
use crate::comm::eager_window::EagerWindow;
use crate::limits::{EAGER_CREDITS_MAX, MAILBOX_SLOTS, RECV_BUFFERS_MAX, RECVS_MAX};
use crate::wire::cts::{self, CtsRecord, CtsSecondLine, RecordLines};
use crate::wire::eager::EagerHeader;
use crate::wire::layout::MailboxLayout;

/// The sender's mailbox, into which the receiver's NIC writes.
pub trait SenderMailbox {
    /// Loads the word at a byte offset, with acquire ordering.
    fn load_word(&self, offset: u64) -> u64;

    /// Loads the words of the line at a byte offset, each with acquire ordering.
    #[inline]
    fn load_line(&self, offset: u64) -> [u64; cts::WORDS] {
        core::array::from_fn(|i| self.load_word(offset + 8 * i as u64))
    }
}

/// How to send a message.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum SendDecision {
    /// Not now; call again.
    NotYet,
    /// Write it to the address in this record.
    Direct(CtsRecord),
    /// Send it eagerly with this header.
    Eager(EagerHeader),
}

/// The state of a comm's sending side.
#[derive(Debug)]
pub struct MessageSender {
    /// The number of the first receive whose records were not read.
    next: u32,
    /// The mailbox offset of that receive's first record.
    at: u32,
    /// Receives whose records were read and that have free buffers, in order.
    open: [OpenReceive; RECVS_MAX],
    open_len: usize,
    /// Eager messages whose buffer is unknown, in order.
    unmatched: [UnmatchedEager; EAGER_CREDITS_MAX],
    unmatched_len: usize,
    eager_number: u32,
    /// Eager messages that may be in flight, where messages overtake each other.
    window: Option<Box<EagerWindow>>,
    eager_credits: usize,
    eager_max: u64,
    lines: RecordLines,
    layout: MailboxLayout,
    /// The mailbox offset of the record that was read last; kept if records have two lines.
    last: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct OpenReceive {
    number: u32,
    /// The mailbox offset of its first record.
    at: u32,
    /// Bit i: buffer i is free.
    free: u8,
}

#[derive(Clone, Copy, Debug, Default)]
struct UnmatchedEager {
    number: u32,
    tag: u32,
}

impl MessageSender {
    /// Returns the sending side of a new comm. The peer accepts eager payloads up to `eager_max` bytes, `eager_credits` at a time.
    #[must_use]
    pub fn new(eager_max: u32, eager_credits: u32) -> Self {
        Self::starting_at(1, eager_max, eager_credits)
    }

    /// Like [`MessageSender::new`], with counters that start near their wrap; for tests.
    #[must_use]
    pub fn starting_at(number: u32, eager_max: u32, eager_credits: u32) -> Self {
        let layout = MailboxLayout::for_single_comm(RecordLines::One);
        Self {
            next: number,
            at: layout.first_offset(number),
            open: [OpenReceive::default(); RECVS_MAX],
            open_len: 0,
            unmatched: [UnmatchedEager::default(); EAGER_CREDITS_MAX],
            unmatched_len: 0,
            eager_number: number.wrapping_sub(1),
            window: None,
            eager_credits: (eager_credits as usize).min(EAGER_CREDITS_MAX),
            eager_max: u64::from(eager_max),
            lines: RecordLines::One,
            layout,
            last: 0,
        }
    }

    /// Makes this the sending side of a comm with that many links.
    #[must_use]
    pub fn with_links(self, links: usize) -> Self {
        let lines = RecordLines::for_links(links);
        Self { lines, ..self }.laid_out(MailboxLayout::for_single_comm(lines))
    }

    /// Makes this the sending side of a comm whose messages may overtake each other.
    #[must_use]
    pub fn without_order(self) -> Self {
        Self { window: Some(Box::new(EagerWindow::new(self.eager_number))), ..self }
    }

    /// Makes this the sending side of a member of a group. Call it before a record has arrived.
    #[must_use]
    pub fn in_group(self) -> Self {
        let layout = MailboxLayout::for_member(self.lines);
        self.laid_out(layout)
    }

    fn laid_out(self, layout: MailboxLayout) -> Self {
        Self { at: layout.first_offset(self.next), layout, ..self }
    }

    /// Returns the address of the last returned record's buffer for the links after the first; `None` if the comm has one
    /// link.
    #[must_use]
    pub fn other_links(&self, mailbox: &impl SenderMailbox, record: &CtsRecord) -> Option<CtsSecondLine> {
        match self.lines {
            RecordLines::One => None,
            RecordLines::Two => Self::second_line(mailbox, self.last, record),
        }
    }

    fn second_line(mailbox: &impl SenderMailbox, first: u64, record: &CtsRecord) -> Option<CtsSecondLine> {
        let line = mailbox.load_line(first + cts::BYTES as u64);
        CtsSecondLine::from_words(&line, record.number, record.index)
    }

    /// Decides how to send a message of `len` bytes with `tag`. The caller must carry out every decision except [`SendDecision::NotYet`].
    ///
    /// # Errors
    /// [`MessageFault::TooLong`] if the message's buffer is smaller; [`MessageFault::TooManyReceives`] if the peer posted too many receives.
    #[inline]
    pub fn on_isend(
        &mut self,
        mailbox: &impl SenderMailbox,
        tag: u32,
        len: u64,
    ) -> Result<SendDecision, MessageFault> {
        if self.open_len == 0 && self.unmatched_len == 0 {
            if cts::head_number(mailbox.load_word(u64::from(self.at))) != self.next {
                return Ok(self.try_eager(tag, len));
            }
            if let Some(record) = self.read_record(mailbox, u64::from(self.at), self.next, 0)
                && record.count == 1
                && record.tag == tag
            {
                self.advance_receive(1);
                return self.write_direct(record, len);
            }
        }
        self.on_isend_slow(mailbox, tag, len)
    }

    /// Reads the records that have arrived, so that isend finds less to do. Optional: [`MessageSender::on_isend`] reads them too.
    ///
    /// # Errors
    /// [`MessageFault::TooManyReceives`] if the peer posted too many receives.
    pub fn on_records(&mut self, mailbox: &impl SenderMailbox) -> Result<(), MessageFault> {
        if self.unmatched_len > 0 { self.read_records(mailbox) } else { Ok(()) }
    }

    /// The number of the first receive whose records were not read.
    #[must_use]
    pub fn next_number(&self) -> u32 {
        self.next
    }

    /// Number of eager messages whose buffer is unknown.
    #[inline]
    #[must_use]
    pub fn unmatched_count(&self) -> usize {
        self.unmatched_len
    }

    /// Sets how many eager messages may be unmatched: the credits of this member of a group.
    #[inline]
    pub fn set_credits(&mut self, credits: usize) {
        self.eager_credits = credits.min(EAGER_CREDITS_MAX);
    }

    fn on_isend_slow(
        &mut self,
        mailbox: &impl SenderMailbox,
        tag: u32,
        len: u64,
    ) -> Result<SendDecision, MessageFault> {
        self.read_records(mailbox)?;
        for at in 0..self.open_len {
            let OpenReceive { number, at: first, free } = self.open[at];
            for index in (0..RECV_BUFFERS_MAX).filter(|i| free >> i & 1 == 1) {
                let place = self.layout.record_offset(first, index);
                let Some(record) = self.read_record(mailbox, place, number, index as u8) else { continue };
                if record.tag == tag {
                    self.take_buffer(at, index);
                    return self.write_direct(record, len);
                }
            }
        }
        Ok(self.try_eager(tag, len))
    }

    #[inline]
    fn try_eager(&mut self, tag: u32, len: u64) -> SendDecision {
        if len > self.eager_max || self.unmatched_len >= self.eager_credits {
            return SendDecision::NotYet;
        }
        let number = self.eager_number;
        if number.wrapping_sub(self.oldest_unplaced()) >= MAILBOX_SLOTS as u32 {
            return SendDecision::NotYet;
        }
        self.unmatched[self.unmatched_len] = UnmatchedEager { number, tag };
        self.unmatched_len += 1;
        self.eager_number = number.wrapping_add(1);
        // `len` fits, because it is at most `eager_max`, which was a u32.
        SendDecision::Eager(EagerHeader { number, base: self.next, tag, len: len as u32 })
    }

    /// The oldest eager message that the receiver may still have to place, or else the number of the next one. If messages arrive in
    /// order, that is the oldest without a buffer: once it has arrived, all before it have.
    #[inline]
    fn oldest_unplaced(&self) -> u32 {
        match &self.window {
            Some(window) => window.first_number(),
            None => self.oldest_unmatched(),
        }
    }

    #[inline]
    fn oldest_unmatched(&self) -> u32 {
        self.unmatched[..self.unmatched_len].first().map_or(self.eager_number, |eager| eager.number)
    }

    /// Reads every receive whose records have all arrived, and assigns its buffers to eager messages first.
    fn read_records(&mut self, mailbox: &impl SenderMailbox) -> Result<(), MessageFault> {
        for _ in 0..MAILBOX_SLOTS {
            let place = u64::from(self.at);
            let Some(first) = self.read_record(mailbox, place, self.next, 0) else { return Ok(()) };
            let count = usize::from(first.count);
            let mut tags = [first.tag; RECV_BUFFERS_MAX];
            for (index, tag) in tags.iter_mut().enumerate().take(count).skip(1) {
                let place = self.layout.record_offset(self.at, index);
                match self.read_record(mailbox, place, self.next, index as u8) {
                    Some(record) if record.count == first.count => *tag = record.tag,
                    _ => return Ok(()),
                }
            }
            let free = self.match_eager(&tags[..count]);
            if free != 0 {
                let Some(open) = self.open.get_mut(self.open_len) else {
                    return Err(MessageFault::TooManyReceives);
                };
                *open = OpenReceive { number: self.next, at: self.at, free };
                self.open_len += 1;
            }
            self.advance_receive(count);
        }
        Ok(())
    }

    /// Advances past the receive that was read, which has `count` buffers.
    #[inline]
    fn advance_receive(&mut self, count: usize) {
        let oldest = self.oldest_unmatched();
        if let Some(window) = &mut self.window {
            window.record_receive(self.next, oldest);
        }
        self.next = self.next.wrapping_add(1);
        self.at = self.layout.next(self.at, count);
    }

    /// Assigns each buffer to the oldest unmatched eager message with its tag. Returns the bits of the free buffers.
    fn match_eager(&mut self, tags: &[u32]) -> u8 {
        let mut free = 0;
        for (index, &tag) in tags.iter().enumerate() {
            let waiting = &mut self.unmatched[..self.unmatched_len];
            let taken = waiting.iter().position(|eager| eager.tag == tag);
            if let Some(at) = taken {
                waiting.copy_within(at + 1.., at);
                self.unmatched_len -= 1;
            }
            if taken.is_none() {
                free |= 1 << index;
            }
        }
        free
    }

    fn take_buffer(&mut self, at: usize, index: usize) {
        self.open[at].free &= !(1 << index);
        if self.open[at].free == 0 {
            self.open.copy_within(at + 1..self.open_len, at);
            self.open_len -= 1;
        }
    }

    #[inline]
    fn read_record(
        &mut self,
        mailbox: &impl SenderMailbox,
        start: u64,
        number: u32,
        index: u8,
    ) -> Option<CtsRecord> {
        // Most polls find no new record, and then read one word only.
        if cts::head_number(mailbox.load_word(start)) != number {
            return None;
        }
        let words = mailbox.load_line(start);
        let record = CtsRecord::from_words(&words, number, index)?;
        if self.lines == RecordLines::One {
            return Some(record);
        }
        self.last = start;
        let whole = Self::second_line(mailbox, start, &record).is_some();
        whole.then_some(record)
    }

    #[inline]
    fn write_direct(&self, record: CtsRecord, len: u64) -> Result<SendDecision, MessageFault> {
        if len > record.len {
            return Err(MessageFault::TooLong { len, room: record.len });
        }
        Ok(SendDecision::Direct(record))
    }
}
