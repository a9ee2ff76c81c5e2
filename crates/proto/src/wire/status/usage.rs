//! What a NIC has in use, as the NIC itself counts it: part of the head of a status page.

/// Words of one NIC.
pub const WORDS: usize = 4;
/// Byte offset of the first NIC's words in the head.
pub const AT: usize = 1024;

/// What one NIC has in use for one process, and how much it has.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct NicUsage {
    /// Queue pairs; on fabrics that have none, whatever [`NicUsage::queue_pairs_max`] limits.
    pub queue_pairs: u32,
    /// Most of them, of all processes together; 0 if it is not known.
    pub queue_pairs_max: u32,
    /// Completion queues.
    pub completion_queues: u32,
    /// Registered regions.
    pub regions: u32,
    /// Most of them; 0 if it is not known.
    pub regions_max: u32,
}

impl NicUsage {
    /// Its words.
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

    /// Reads them.
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
