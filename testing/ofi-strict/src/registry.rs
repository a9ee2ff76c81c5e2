//! The registrations of a domain: their stages (made, bound, enabled, closed), and the operations that each stage
//! permits. All rules for memory are here; callers report the returned [`BrokenRule`].

use std::collections::{BTreeMap, VecDeque};

use trunkline_sys::ofi::{caps, errno, mr_mode};

use crate::device::HeldDeviceWrites;
use crate::memory::{ProgramRange, is_there};

/// Most closed registrations whose keys are remembered, if callers choose keys.
const RETIRED_MAX: usize = 65536;
/// Bytes of a key that the caller chooses.
pub(crate) const CLIENT_KEY_BYTES: usize = 4;
const RIGHTS: u64 =
    caps::SEND | caps::RECV | caps::READ | caps::WRITE | caps::REMOTE_READ | caps::REMOTE_WRITE;
const REMOTE: u64 = caps::REMOTE_READ | caps::REMOTE_WRITE;

/// A broken rule: the result of the call, as a positive number, and the line of the violation.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct BrokenRule {
    pub(crate) error: i32,
    /// `None` if the error is not the program's fault.
    pub(crate) line: Option<String>,
}

impl BrokenRule {
    /// A violation.
    pub(crate) fn with_rule(error: i32, line: impl Into<String>) -> Self {
        Self { error, line: Some(line.into()) }
    }

    /// An error that correct programs may also receive.
    pub(crate) fn without_rule(error: i32) -> Self {
        Self { error, line: None }
    }
}

/// Number of a registration; never reused.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) struct StrictMrId(pub(crate) u64);

/// The stage of a registration.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum RegistrationStage {
    Made,
    Bound,
    Enabled,
}

struct StrictRegistration {
    range: ProgramRange,
    /// For device memory, the address of its bytes.
    bytes: Option<usize>,
    rights: u64,
    key: u64,
    stage: RegistrationStage,
    /// The endpoint it is bound to.
    endpoint: Option<u32>,
    /// Operations posted by this process that use it.
    uses: u32,
}

/// The use of a buffer by a local operation.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum BufferUse {
    Send,
    Recv,
    ReadInto,
    WriteFrom,
}

impl BufferUse {
    fn needed_right(self) -> (u64, &'static str) {
        match self {
            Self::Send => (caps::SEND, "FI_SEND"),
            Self::Recv => (caps::RECV, "FI_RECV"),
            Self::ReadInto => (caps::READ, "FI_READ"),
            Self::WriteFrom => (caps::WRITE, "FI_WRITE"),
        }
    }
}

/// A request to register.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RegistrationRequest {
    pub(crate) range: ProgramRange,
    pub(crate) rights: u64,
    pub(crate) requested_key: u64,
    /// For device memory, the address of its bytes.
    pub(crate) bytes: Option<usize>,
}

/// All registrations of a domain.
pub(crate) struct MrRegistry {
    mode: i32,
    budget: u64,
    /// Makes keys of the provider differ from small numbers and from the keys of other domains.
    noise: u64,
    entries: u64,
    most_entries: u64,
    /// Writes that devices do not see yet.
    pub(crate) held: HeldDeviceWrites,
    next: u64,
    all: BTreeMap<StrictMrId, StrictRegistration>,
    keys: BTreeMap<u64, StrictMrId>,
    retired: VecDeque<u64>,
    /// Number of registrations that were enabled, by endpoint and rights.
    made: BTreeMap<(Option<u32>, u64), u64>,
}

impl MrRegistry {
    /// Creates an empty registry. The upper half of `noise` is part of the provider's keys.
    pub(crate) fn new(mode: i32, budget: u64, noise: u64) -> Self {
        Self {
            mode,
            budget,
            noise: noise & !0xFFFF_FFFF,
            entries: 0,
            most_entries: 0,
            held: HeldDeviceWrites::default(),
            next: 1,
            all: BTreeMap::new(),
            keys: BTreeMap::new(),
            retired: VecDeque::new(),
            made: BTreeMap::new(),
        }
    }

    fn has_mode(&self, bit: i32) -> bool {
        self.mode & bit != 0
    }

    /// Creates a registration. Without [`mr_mode::ENDPOINT`] it is enabled at once, and its key is returned.
    ///
    /// # Errors
    /// The rule that the request breaks.
    pub(crate) fn register(
        &mut self,
        wanted: RegistrationRequest,
    ) -> Result<(StrictMrId, Option<u64>), BrokenRule> {
        let RegistrationRequest { range, rights, requested_key, bytes } = wanted;
        if range.len == 0
            || range.base.checked_add(range.len).is_none()
            || rights & !RIGHTS != 0
            || rights == 0
        {
            let line = format!("registration of {} bytes with rights {rights:#x}", range.len);
            return Err(BrokenRule::with_rule(errno::EINVAL, line));
        }
        if bytes.is_none() && self.has_mode(mr_mode::ALLOCATED) && !is_there(range) {
            let line = format!("registration of {} bytes with pages that are not resident", range.len);
            return Err(BrokenRule::with_rule(errno::EFAULT, line));
        }
        let id = StrictMrId(self.next);
        let key = if self.has_mode(mr_mode::PROV_KEY) { id.0 ^ self.noise } else { requested_key };
        if !self.has_mode(mr_mode::PROV_KEY) {
            if key >> (8 * CLIENT_KEY_BYTES) != 0 {
                let line = format!("requested key {key:#x} has more than {CLIENT_KEY_BYTES} bytes");
                return Err(BrokenRule::with_rule(errno::EKEYREJECTED, line));
            }
            if self.keys.contains_key(&key) {
                return Err(BrokenRule::with_rule(
                    errno::ENOKEY,
                    format!("requested key {key:#x} is in use"),
                ));
            }
        }
        self.next += 1;
        self.keys.insert(key, id);
        self.retired.retain(|retired| *retired != key);
        let made = StrictRegistration {
            range,
            bytes,
            rights,
            key,
            stage: RegistrationStage::Made,
            endpoint: None,
            uses: 0,
        };
        self.all.insert(id, made);
        if self.has_mode(mr_mode::ENDPOINT) {
            return Ok((id, None));
        }
        match self.enable_now(id) {
            Ok(key) => Ok((id, Some(key))),
            Err(broken) => {
                self.forget_registration(id);
                Err(broken)
            }
        }
    }

    /// Binds a registration to an endpoint of the domain.
    ///
    /// # Errors
    /// If the mode or the stage does not permit it.
    pub(crate) fn bind_endpoint(
        &mut self,
        id: StrictMrId,
        endpoint: u32,
        is_enabled: bool,
    ) -> Result<(), BrokenRule> {
        let wrong = |line: &str| Err(BrokenRule::with_rule(errno::EINVAL, line));
        if !self.has_mode(mr_mode::ENDPOINT) {
            return wrong("bind of a registration although the mr_mode lacks FI_MR_ENDPOINT");
        }
        let Some(registration) = self.all.get_mut(&id) else {
            return wrong("bind of an unknown registration");
        };
        match registration.stage {
            RegistrationStage::Made if is_enabled => {
                (registration.stage, registration.endpoint) = (RegistrationStage::Bound, Some(endpoint));
                Ok(())
            }
            RegistrationStage::Made => wrong("bind of a registration before the endpoint is enabled"),
            RegistrationStage::Bound => wrong("bind of a registration to a second endpoint"),
            RegistrationStage::Enabled => wrong("bind of a registration that is enabled"),
        }
    }

    /// Enables a registration; returns its key.
    ///
    /// # Errors
    /// If it is not bound, or no list entries are left.
    pub(crate) fn enable_registration(&mut self, id: StrictMrId) -> Result<u64, BrokenRule> {
        match self.all.get(&id).map(|registration| registration.stage) {
            Some(RegistrationStage::Bound) => self.enable_now(id),
            Some(RegistrationStage::Made) => {
                Err(BrokenRule::with_rule(errno::EINVAL, "enable of a registration that is not bound"))
            }
            _ => Err(BrokenRule::with_rule(errno::EINVAL, "enable of a registration that is enabled")),
        }
    }

    fn enable_now(&mut self, id: StrictMrId) -> Result<u64, BrokenRule> {
        let Some(registration) = self.all.get_mut(&id) else {
            return Err(BrokenRule::without_rule(errno::EINVAL));
        };
        let entries = self.entries + entry_cost(registration.rights);
        if entries > self.budget {
            return Err(BrokenRule::without_rule(errno::ENOSPC));
        }
        registration.stage = RegistrationStage::Enabled;
        self.entries = entries;
        self.most_entries = self.most_entries.max(entries);
        *self.made.entry((registration.endpoint, registration.rights)).or_default() += 1;
        Ok(registration.key)
    }

    /// Closes a registration.
    ///
    /// # Errors
    /// If an operation posted by this process uses it.
    pub(crate) fn close(&mut self, id: StrictMrId) -> Result<(), BrokenRule> {
        let uses = self.all.get(&id).map_or(0, |registration| registration.uses);
        if uses > 0 {
            let line = format!("close of a registration that {uses} operations use");
            return Err(BrokenRule::with_rule(errno::EBUSY, line));
        }
        self.held.show_writes(Some(id));
        self.forget_registration(id);
        Ok(())
    }

    fn forget_registration(&mut self, id: StrictMrId) {
        let Some(gone) = self.all.remove(&id) else { return };
        if gone.stage == RegistrationStage::Enabled {
            self.entries -= entry_cost(gone.rights);
        }
        self.keys.remove(&gone.key);
        if !self.has_mode(mr_mode::PROV_KEY) {
            self.retired.push_back(gone.key);
            if self.retired.len() > RETIRED_MAX {
                self.retired.pop_front();
            }
        }
    }

    /// Returns the number of registrations that are bound to an endpoint.
    pub(crate) fn bound_to(&self, endpoint: u32) -> usize {
        self.all.values().filter(|registration| registration.endpoint == Some(endpoint)).count()
    }

    pub(crate) fn live_count(&self) -> usize {
        self.all.len()
    }

    pub(crate) fn most_entries(&self) -> u64 {
        self.most_entries
    }

    /// Returns how many registrations were enabled, by endpoint and rights.
    pub(crate) fn enabled_counts(&self) -> impl Iterator<Item = (Option<u32>, u64, u64)> {
        self.made.iter().map(|((endpoint, rights), count)| (*endpoint, *rights, *count))
    }

    /// Checks that an operation of an endpoint may use a buffer with this descriptor (0 for none); returns the
    /// registration that it uses.
    ///
    /// # Errors
    /// The rule that it breaks.
    pub(crate) fn check_local(
        &self,
        endpoint: u32,
        range: ProgramRange,
        desc: usize,
        purpose: BufferUse,
    ) -> Result<Option<StrictMrId>, BrokenRule> {
        let wrong = |line: String| Err(BrokenRule::with_rule(errno::EINVAL, line));
        if desc == 0 {
            if range.len > 0 && self.has_mode(mr_mode::LOCAL) {
                return wrong("an operation's buffer has no descriptor".to_owned());
            }
            return Ok(None);
        }
        let id = StrictMrId(desc as u64);
        let Some(registration) = self.all.get(&id) else {
            return wrong(format!("descriptor {desc:#x} belongs to no open registration"));
        };
        if registration.stage != RegistrationStage::Enabled {
            return wrong("a descriptor is used before its registration is enabled".to_owned());
        }
        if let Some(bound) = registration.endpoint.filter(|bound| *bound != endpoint) {
            return wrong(format!(
                "a descriptor of a registration of endpoint {bound} is used on endpoint {endpoint}"
            ));
        }
        let (right, name) = purpose.needed_right();
        if registration.rights & right == 0 {
            return wrong(format!("the registration of a buffer lacks {name}, which the operation needs"));
        }
        if range.len > 0 && !registration.range.contains_range(range) {
            return wrong(format!("a buffer of {} bytes leaves its registration", range.len));
        }
        Ok(Some(id))
    }

    /// Counts the operations that use registrations up or down.
    pub(crate) fn update_uses(&mut self, ids: &[StrictMrId], begins: bool) {
        for id in ids {
            if let Some(registration) = self.all.get_mut(id) {
                registration.uses =
                    if begins { registration.uses + 1 } else { registration.uses.saturating_sub(1) };
            }
        }
    }

    /// Checks the access of a peer; returns the registration, and the range in memory.
    ///
    /// # Errors
    /// The rule that the peer breaks. The key of a closed registration breaks no rule, because the peer cannot know
    /// of the close in time.
    pub(crate) fn check_remote(
        &self,
        endpoint: u32,
        key: u64,
        addr: u64,
        len: u64,
        is_write: bool,
    ) -> Result<(StrictMrId, ProgramRange), BrokenRule> {
        let Some(id) = self.keys.get(&key) else { return Err(self.no_such_key(key)) };
        let Some(registration) = self.all.get(id) else {
            return Err(BrokenRule::without_rule(errno::EKEYREJECTED));
        };
        if registration.stage != RegistrationStage::Enabled {
            let line = format!("a peer uses key {key:#x} before its registration is enabled");
            return Err(BrokenRule::with_rule(errno::EKEYREJECTED, line));
        }
        if let Some(bound) = registration.endpoint.filter(|bound| *bound != endpoint) {
            let line = format!("a peer uses key {key:#x} of endpoint {bound} at endpoint {endpoint}");
            return Err(BrokenRule::with_rule(errno::EKEYREJECTED, line));
        }
        let right = if is_write { caps::REMOTE_WRITE } else { caps::REMOTE_READ };
        if registration.rights & right == 0 {
            let verb = if is_write { "writes" } else { "reads" };
            let line = format!("a peer {verb} with key {key:#x}, whose registration does not allow it");
            return Err(BrokenRule::with_rule(errno::EACCES, line));
        }
        let outside = || {
            let line = format!(
                "a peer's access at {addr:#x} of {len} bytes leaves the registration of key {key:#x}"
            );
            BrokenRule::with_rule(errno::EACCES, line)
        };
        let zero = if self.has_mode(mr_mode::VIRT_ADDR) { 0 } else { registration.range.base };
        let base = usize::try_from(addr).ok().and_then(|addr| zero.checked_add(addr)).ok_or_else(outside)?;
        let range = ProgramRange { base, len: usize::try_from(len).map_err(|_| outside())? };
        if registration.range.contains_range(range) {
            Ok((*id, self.memory_range(*id, range)))
        } else {
            Err(outside())
        }
    }

    /// Returns the address range that contains the bytes of a part of a registration.
    pub(crate) fn memory_range(&self, id: StrictMrId, range: ProgramRange) -> ProgramRange {
        match self.all.get(&id) {
            Some(StrictRegistration { range: whole, bytes: Some(bytes), .. }) if range.len > 0 => {
                ProgramRange { base: bytes + (range.base - whole.base), ..range }
            }
            _ => range,
        }
    }

    /// Whether the registration is of device memory.
    pub(crate) fn is_of_device(&self, id: StrictMrId) -> bool {
        self.all.get(&id).is_some_and(|registration| registration.bytes.is_some())
    }

    fn no_such_key(&self, key: u64) -> BrokenRule {
        let was_good = if self.has_mode(mr_mode::PROV_KEY) {
            (1..self.next).contains(&(key ^ self.noise))
        } else {
            self.retired.contains(&key)
        };
        if was_good {
            return BrokenRule::without_rule(errno::EKEYREJECTED);
        }
        BrokenRule::with_rule(errno::EKEYREJECTED, format!("a peer uses key {key:#x}, which was never valid"))
    }

    /// Whether the registration is open.
    pub(crate) fn is_live(&self, id: StrictMrId) -> bool {
        self.all.contains_key(&id)
    }
}

/// Returns the number of list entries that an enabled registration uses.
fn entry_cost(rights: u64) -> u64 {
    if rights & REMOTE != 0 { 2 } else { 0 }
}

/// Formats rights by their names.
pub(crate) fn rights_text(rights: u64) -> String {
    let names = [
        (caps::SEND, "SEND"),
        (caps::RECV, "RECV"),
        (caps::READ, "READ"),
        (caps::WRITE, "WRITE"),
        (caps::REMOTE_READ, "REMOTE_READ"),
        (caps::REMOTE_WRITE, "REMOTE_WRITE"),
    ];
    let there = names.iter().filter(|(bit, _)| rights & bit != 0).map(|(_, name)| *name);
    there.collect::<Vec<_>>().join("|")
}

#[cfg(test)]
#[path = "registry_tests.rs"]
mod tests;
