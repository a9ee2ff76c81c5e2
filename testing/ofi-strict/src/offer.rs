//! Computes the offers for the hints of `fi_getinfo`, before they are converted to C structures.

use trunkline_sys::ofi::{addr_format, caps, ep_type, order, progress, threading};

use crate::config::StrictConfig;

/// Format of addresses: 16 bytes of this provider. The highest bit marks formats that a provider defines.
pub(crate) const ADDR_FORMAT: u32 = 0x8000_0001;
/// Name of the provider, and of its fabric.
pub(crate) const NAME: &str = "strict";

/// Supported orders between operations to one peer.
const ORDERS: u64 = 0x1FF | order::RMA_RAR | order::RMA_RAW | order::RMA_WAR | order::RMA_WAW;
/// All supported capabilities.
const PRIMARY: u64 = caps::MSG | caps::TAGGED | caps::RMA;
const DIRECTIONS: u64 =
    caps::SEND | caps::RECV | caps::READ | caps::WRITE | caps::REMOTE_READ | caps::REMOTE_WRITE;
const SECONDARY: u64 = caps::SOURCE | caps::DIRECTED_RECV | caps::LOCAL_COMM | caps::REMOTE_COMM | caps::HMEM;
/// Supported default flags of an endpoint's operations.
const OP_FLAGS: u64 =
    caps::COMPLETION | caps::INJECT_COMPLETE | caps::TRANSMIT_COMPLETE | caps::DELIVERY_COMPLETE;

/// Hints of a caller; zero or `None` means no preference.
#[derive(Clone, Debug, Default)]
pub(crate) struct InfoHints {
    pub(crate) caps: u64,
    pub(crate) addr_format: u32,
    pub(crate) ep_type: u32,
    pub(crate) msg_order: u64,
    pub(crate) comp_order: u64,
    pub(crate) tx_flags: u64,
    pub(crate) rx_flags: u64,
    pub(crate) inject_size: usize,
    pub(crate) tx_size: usize,
    pub(crate) rx_size: usize,
    pub(crate) threading: u32,
    pub(crate) control_progress: u32,
    pub(crate) data_progress: u32,
    pub(crate) av_type: u32,
    /// Requirements for registrations that the caller can meet; `None` if it passed no domain attributes.
    pub(crate) mr_mode: Option<i32>,
    pub(crate) cq_data_size: usize,
    pub(crate) domain: Option<String>,
    pub(crate) fabric: Option<String>,
}

/// One offer.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct ProviderOffer {
    pub(crate) nic: u32,
    pub(crate) caps: u64,
    pub(crate) msg_order: u64,
    pub(crate) tx_flags: u64,
    pub(crate) rx_flags: u64,
    pub(crate) threading: u32,
    pub(crate) progress: u32,
    pub(crate) av_type: u32,
    pub(crate) mr_mode: i32,
}

/// Why no offer is made.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum OfferRefusal {
    /// Another type of endpoint is requested. This is not reported, because layered providers request their own
    /// core's type.
    Kind,
    /// A line that names the hint that cannot be met.
    Because(String),
}

impl From<String> for OfferRefusal {
    fn from(line: String) -> Self {
        Self::Because(line)
    }
}

/// Returns one offer per NIC.
///
/// # Errors
/// The hint that cannot be met.
pub(crate) fn make_offers(
    wishes: &InfoHints,
    config: &StrictConfig,
) -> Result<Vec<ProviderOffer>, OfferRefusal> {
    if wishes.ep_type != 0 && wishes.ep_type != ep_type::RDM {
        return Err(OfferRefusal::Kind);
    }
    Ok(offers_of_kind(wishes, config)?)
}

fn offers_of_kind(wishes: &InfoHints, config: &StrictConfig) -> Result<Vec<ProviderOffer>, String> {
    let caps = granted_caps(wishes.caps, config)?;
    if ![addr_format::UNSPEC, ADDR_FORMAT].contains(&wishes.addr_format) {
        return Err(format!(
            "address format {ADDR_FORMAT:#x} is supported, but the hints request {}",
            wishes.addr_format
        ));
    }
    if wishes.msg_order & !ORDERS != 0 || wishes.comp_order != 0 {
        return Err("completions are unordered, and atomic operations are not supported".to_owned());
    }
    if (wishes.tx_flags | wishes.rx_flags) & !OP_FLAGS != 0 {
        return Err(format!(
            "operations do not support the default flags {:#x}",
            wishes.tx_flags | wishes.rx_flags
        ));
    }
    let sizes = [
        ("inject_size", wishes.inject_size, config.inject),
        ("tx size", wishes.tx_size, config.depth),
        ("rx size", wishes.rx_size, config.depth),
        ("cq_data_size", wishes.cq_data_size, config.cq_data),
    ];
    if let Some((name, wish, ours)) = sizes.iter().find(|(_, wish, ours)| wish > ours) {
        return Err(format!("{name} is {ours}, but the hints request {wish}"));
    }
    if let Some(offered) = wishes.mr_mode {
        demands_are_met(offered, config.mr_mode)?;
    }
    let granted = granted_progress(wishes, config)?;
    if wishes.fabric.as_deref().is_some_and(|name| name != NAME) {
        return Err("the hints request another fabric than strict".to_owned());
    }
    let offer = |nic| ProviderOffer {
        nic,
        caps,
        msg_order: wishes.msg_order,
        tx_flags: wishes.tx_flags,
        rx_flags: wishes.rx_flags,
        threading: if wishes.threading == 0 { threading::SAFE } else { wishes.threading },
        progress: granted,
        av_type: if wishes.av_type == 0 { trunkline_sys::ofi::av_type::TABLE } else { wishes.av_type },
        mr_mode: config.mr_mode,
    };
    let named = |nic: &u32| wishes.domain.as_ref().is_none_or(|name| *name == format!("{NAME}{nic}"));
    let all: Vec<_> = (0..config.nics).filter(named).map(offer).collect();
    if all.is_empty() { Err("no domain has the requested name".to_owned()) } else { Ok(all) }
}

fn granted_caps(wish: u64, config: &StrictConfig) -> Result<u64, String> {
    let primary = if config.tagged { PRIMARY } else { PRIMARY & !caps::TAGGED };
    let all = primary | DIRECTIONS | SECONDARY;
    if wish & !all != 0 {
        return Err(format!("capabilities {:#x} are not supported", wish & !all));
    }
    if wish == 0 {
        return Ok(all);
    }
    let chosen = if wish & PRIMARY == 0 { primary } else { wish & PRIMARY };
    let directions = if wish & DIRECTIONS == 0 {
        let two_sided = if chosen & (caps::MSG | caps::TAGGED) != 0 { caps::SEND | caps::RECV } else { 0 };
        let one_sided = DIRECTIONS & !(caps::SEND | caps::RECV);
        two_sided | if chosen & caps::RMA != 0 { one_sided } else { 0 }
    } else {
        wish & DIRECTIONS
    };
    Ok(chosen | directions | wish & SECONDARY | caps::LOCAL_COMM | caps::REMOTE_COMM)
}

fn demands_are_met(offered: i32, demanded: i32) -> Result<(), String> {
    use trunkline_sys::ofi::mr_mode::{ALLOCATED, BASIC, ENDPOINT, LOCAL, PROV_KEY, SCALABLE, VIRT_ADDR};
    // Modes that existed before the mode bits.
    let offered = match offered {
        BASIC => BASIC | VIRT_ADDR | ALLOCATED | PROV_KEY,
        SCALABLE => 0,
        bits => bits,
    };
    let names = [
        (ENDPOINT, "FI_MR_ENDPOINT"),
        (PROV_KEY, "FI_MR_PROV_KEY"),
        (ALLOCATED, "FI_MR_ALLOCATED"),
        (LOCAL, "FI_MR_LOCAL"),
        (VIRT_ADDR, "FI_MR_VIRT_ADDR"),
    ];
    let missing = names.iter().filter(|(bit, _)| demanded & bit != 0 && offered & bit == 0);
    let missing: Vec<_> = missing.map(|(_, name)| *name).collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(format!("{} is required, but the mr_mode of the hints does not contain it", missing.join("|")))
}

fn granted_progress(wishes: &InfoHints, config: &StrictConfig) -> Result<u32, String> {
    if config.auto_progress {
        return Ok(progress::AUTO);
    }
    if [wishes.control_progress, wishes.data_progress].contains(&progress::AUTO) {
        return Err("progress is FI_PROGRESS_MANUAL, but the hints request FI_PROGRESS_AUTO".to_owned());
    }
    Ok(progress::MANUAL)
}

#[cfg(test)]
mod tests {
    use trunkline_sys::ofi::mr_mode;

    use super::*;

    fn of(
        change: impl FnOnce(&mut InfoHints, &mut StrictConfig),
    ) -> Result<Vec<ProviderOffer>, OfferRefusal> {
        let mut wishes = InfoHints::default();
        let mut config = StrictConfig::default();
        change(&mut wishes, &mut config);
        make_offers(&wishes, &config)
    }

    #[test]
    fn empty_hints_offer_everything() {
        let all = of(|_, config| config.nics = 3).unwrap();
        assert_eq!(all.iter().map(|offer| offer.nic).collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!(all[0].caps & (PRIMARY | DIRECTIONS), PRIMARY | DIRECTIONS);
        assert_eq!((all[0].progress, all[0].threading), (progress::MANUAL, threading::SAFE));
    }

    #[test]
    fn capabilities_imply_their_directions() {
        let caps_of = |wish| of(|wishes, _| wishes.caps = wish).unwrap()[0].caps;
        let comm = caps::LOCAL_COMM | caps::REMOTE_COMM;
        assert_eq!(caps_of(caps::MSG), caps::MSG | caps::SEND | caps::RECV | comm);
        assert_eq!(caps_of(caps::RMA | caps::WRITE), caps::RMA | caps::WRITE | comm);
        assert_eq!(caps_of(caps::TAGGED | caps::SOURCE) & caps::SOURCE, caps::SOURCE);
    }

    #[test]
    fn unsatisfiable_hints_are_named() {
        type Change = fn(&mut InfoHints, &mut StrictConfig);
        let cases: [(&str, Change); 11] = [
            ("capabilities", |w, _| w.caps = caps::ATOMIC),
            ("capabilities", |w, c| (w.caps, c.tagged) = (caps::TAGGED, false)),
            ("format", |w, _| w.addr_format = addr_format::SOCKADDR_IN),
            ("order", |w, _| w.comp_order = order::STRICT),
            ("inject_size is 192", |w, _| w.inject_size = 193),
            ("cq_data_size is 4", |w, c| (w.cq_data_size, c.cq_data) = (8, 4)),
            ("FI_MR_ENDPOINT is required", |w, _| {
                w.mr_mode = Some(mr_mode::PROV_KEY | mr_mode::ALLOCATED);
            }),
            ("FI_MR_ENDPOINT|FI_MR_PROV_KEY|FI_MR_ALLOCATED is", |w, _| w.mr_mode = Some(mr_mode::SCALABLE)),
            ("FI_PROGRESS_MANUAL", |w, _| w.data_progress = progress::AUTO),
            ("no domain", |w, _| w.domain = Some("strict1".to_owned())),
            ("fabric", |w, _| w.fabric = Some("cxi".to_owned())),
        ];
        for (words, change) in cases {
            let Err(OfferRefusal::Because(said)) = of(change) else { panic!("{words}") };
            assert!(said.contains(words), "{said}");
        }
        assert_eq!(of(|w, _| w.ep_type = ep_type::MSG), Err(OfferRefusal::Kind));
    }

    #[test]
    fn hints_may_accept_unneeded_requirements() {
        let every =
            mr_mode::ENDPOINT | mr_mode::PROV_KEY | mr_mode::ALLOCATED | mr_mode::LOCAL | mr_mode::HMEM;
        let offer = of(|w, _| w.mr_mode = Some(every)).unwrap().remove(0);
        assert_eq!(offer.mr_mode, mr_mode::ENDPOINT | mr_mode::PROV_KEY | mr_mode::ALLOCATED);
        let none = of(|w, c| (w.mr_mode, c.mr_mode) = (Some(0), 0)).unwrap().remove(0);
        assert_eq!(none.mr_mode, 0);
    }
}
