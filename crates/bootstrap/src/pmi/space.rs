//! The server of PMI-1: a key-value space and barriers. Pure; the launcher reads and writes the lines.

use std::collections::BTreeMap;

use super::line::{PmiLine, is_word};

/// Most bytes of the name of the space, of a key, and of a value.
const NAME_MAX: usize = 64;
const KEY_MAX: usize = 64;
const VALUE_MAX: usize = 832;
/// The keys of the whole job are limited to this number per process; a single process may put all of them.
const KEYS_PER_RANK: usize = 64;

/// A reply of the server.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum PmiReply {
    /// A line for one process, without the newline.
    To(usize, String),
    /// End the job with this exit status.
    Abort(i32),
}

/// The key-value space of one job.
#[derive(Debug)]
pub struct PmiSpace {
    name: String,
    pairs: BTreeMap<String, String>,
    /// Whether each process waits in the barrier.
    waiting: Vec<bool>,
}

impl PmiSpace {
    /// Creates the space of a job with `size` processes. `mapping` defines which of them share a host, in PMI's form.
    #[must_use]
    pub fn new(size: usize, name: &str, mapping: &str) -> Self {
        let pairs = BTreeMap::from([("PMI_process_mapping".to_owned(), mapping.to_owned())]);
        Self { name: name.chars().take(NAME_MAX).collect(), pairs, waiting: vec![false; size] }
    }

    /// Handles a line of a process; returns the replies, to that process or to all. An unknown or invalid line gets an
    /// error reply.
    pub fn on_line(&mut self, rank: usize, text: &str) -> Vec<PmiReply> {
        if rank >= self.waiting.len() {
            return Vec::new();
        }
        let to = |text: String| vec![PmiReply::To(rank, text)];
        let Some(line) = PmiLine::parse(text) else { return to("cmd=error rc=-1 msg=unreadable".into()) };
        let size = self.waiting.len();
        match line.command() {
            "init" => to("cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0".into()),
            "get_maxes" => {
                to(format!("cmd=maxes kvsname_max={NAME_MAX} keylen_max={KEY_MAX} vallen_max={VALUE_MAX}"))
            }
            "get_my_kvsname" => to(format!("cmd=my_kvsname kvsname={}", self.name)),
            "get_universe_size" => to(format!("cmd=universe_size size={size} rc=0")),
            "get_appnum" => to("cmd=appnum appnum=0 rc=0".into()),
            "put" => to(self.put_pair(&line)),
            "get" => to(self.get(&line)),
            "barrier_in" => self.enter_barrier(rank),
            "finalize" => to("cmd=finalize_ack rc=0".into()),
            "abort" => {
                let code = line.get("exitcode").and_then(|code| code.parse().ok()).unwrap_or(1);
                vec![PmiReply::Abort(code)]
            }
            _ => to("cmd=error rc=-1 msg=unknown_command".into()),
        }
    }

    fn put_pair(&mut self, line: &PmiLine) -> String {
        let key = line.get("key").unwrap_or_default();
        let value = line.get("value").unwrap_or_default();
        let fits = is_word(key, KEY_MAX) && (value.is_empty() || is_word(value, VALUE_MAX));
        let room = self.pairs.len() < KEYS_PER_RANK * self.waiting.len() || self.pairs.contains_key(key);
        if line.get("kvsname") != Some(&self.name) || !fits || !room {
            return "cmd=put_result rc=-1 msg=refused".into();
        }
        self.pairs.insert(key.to_owned(), value.to_owned());
        "cmd=put_result rc=0 msg=success".into()
    }

    fn get(&self, line: &PmiLine) -> String {
        match line.get("key").and_then(|key| self.pairs.get(key)) {
            Some(value) if line.get("kvsname") == Some(&self.name) => {
                format!("cmd=get_result rc=0 msg=success value={value}")
            }
            _ => "cmd=get_result rc=-1 msg=key_not_found value=unknown".into(),
        }
    }

    fn enter_barrier(&mut self, rank: usize) -> Vec<PmiReply> {
        self.waiting[rank] = true;
        if !self.waiting.iter().all(|there| *there) {
            return Vec::new();
        }
        self.waiting.fill(false);
        (0..self.waiting.len()).map(|rank| PmiReply::To(rank, "cmd=barrier_out rc=0".into())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn space() -> PmiSpace {
        PmiSpace::new(2, "job1", "(vector,(0,1,2))")
    }

    fn answer(space: &mut PmiSpace, rank: usize, text: &str) -> String {
        match space.on_line(rank, text).as_slice() {
            [PmiReply::To(to, line)] if *to == rank => line.clone(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn put_values_are_readable_by_every_rank() {
        let mut space = space();
        assert!(answer(&mut space, 0, "cmd=init pmi_version=1 pmi_subversion=1").ends_with("rc=0"));
        assert_eq!(answer(&mut space, 0, "cmd=get_my_kvsname"), "cmd=my_kvsname kvsname=job1");
        assert!(answer(&mut space, 1, "cmd=get kvsname=job1 key=a").contains("rc=-1"));
        assert!(answer(&mut space, 0, "cmd=put kvsname=job1 key=a value=b=c").contains("rc=0"));
        assert!(answer(&mut space, 1, "cmd=get kvsname=job1 key=a").ends_with("value=b=c"));
        assert!(answer(&mut space, 1, "cmd=get kvsname=other key=a").contains("rc=-1"));
        assert!(
            answer(&mut space, 1, "cmd=get kvsname=job1 key=PMI_process_mapping")
                .contains("(vector,(0,1,2))")
        );
    }

    #[test]
    fn barrier_opens_for_all_at_once_repeatedly() {
        let mut space = space();
        for _ in 0..2 {
            assert_eq!(space.on_line(1, "cmd=barrier_in"), []);
            assert_eq!(space.on_line(1, "cmd=barrier_in"), [], "one process counts once");
            let open = space.on_line(0, "cmd=barrier_in");
            assert_eq!(open.len(), 2);
        }
    }

    #[test]
    fn limits_hold_and_invalid_lines_get_errors() {
        let mut space = space();
        let mut put = |key: &str, value: &str| {
            answer(&mut space, 0, &format!("cmd=put kvsname=job1 key={key} value={value}")).contains("rc=0")
        };
        assert!(!put(&"k".repeat(65), "v") && !put("k", &"v".repeat(833)) && !put("", "v"));
        let taken = (0..1000).filter(|key| put(&format!("k{key}"), "v")).count();
        assert_eq!(taken, 127, "and the mapping");
        assert!(put("k1", "again"));
        assert!(answer(&mut space, 0, "nonsense").contains("rc=-1"));
        assert!(answer(&mut space, 0, "cmd=spawn").contains("rc=-1"));
        assert_eq!(space.on_line(7, "cmd=init"), []);
        assert_eq!(space.on_line(1, "cmd=abort exitcode=7"), [PmiReply::Abort(7)]);
    }

    proptest::proptest! {
        #[test]
        fn server_never_panics_or_sends_long_lines(lines in proptest::collection::vec((0usize..3, "(cmd=(init|put|get|barrier_in|abort|x)( (kvsname=job1|key=[ak]|value=[a-z]{0,5}|exitcode=-?[0-9]{0,12}))*|.{0,80})"), 0..30)) {
            let mut space = space();
            for (rank, line) in lines {
                for reply in space.on_line(rank, &line) {
                    match reply {
                        PmiReply::To(rank, line) => {
                            proptest::prop_assert!(rank < 2 && line.len() < super::super::LINE_BYTES_MAX);
                        }
                        PmiReply::Abort(_) => {}
                    }
                }
            }
        }
    }
}
