//! The resources that a process uses on each NIC, as counted by the NIC itself: part of the head of a status page.

/// Words per NIC.
pub const WORDS: usize = 4;
/// Offset in bytes of the first NIC's words in the head.
pub const AT: usize = 1024;

/// The resources that one process uses on one NIC, and the limits of the NIC.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct NicUsage {
    /// Queue pairs; on a fabric without queue pairs, the resource that [`NicUsage::queue_pairs_max`] limits.
    pub queue_pairs: u32,
    /// Limit of queue pairs, for all processes together; 0 if unknown.
    pub queue_pairs_max: u32,
    /// Completion queues.
    pub completion_queues: u32,
    /// Registered regions.
    pub regions: u32,
    /// Limit of regions; 0 if unknown.
    pub regions_max: u32,
}

impl NicUsage {
    /// Returns the words of the NIC.
    #[must_use]
    pub fn to_words(&self) -> [u64; WORDS] {
        let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        [
            pair(self.queue_pairs, self.queue_pairs_max),
            pair(self.regions, self.regions_max),
            u64::from(self.completion_queues),
            0,
        ]
    }

    /// Parses the words of a NIC.
    #[must_use]
    pub fn from_words([pairs, regions, queues, _]: [u64; WORDS]) -> Self {
        Self {
            queue_pairs: pairs as u32,
            queue_pairs_max: (pairs >> 32) as u32,
            completion_queues: queues as u32,
            regions: regions as u32,
            regions_max: (regions >> 32) as u32,
        }
    }
}
