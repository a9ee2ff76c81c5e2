//! The scenarios by name.

use crate::contract::{arguments, connections, fabrics, fused, lifetimes, messages};
use crate::gpu;
use crate::hosts::{cable, look, stream};
use crate::loading;
use crate::near;
use crate::ofi;
use crate::rdma::{counts, sizes};
use crate::run::Scene;
use crate::sharing::{churn, crowds, flushes, neighbours};
use crate::trouble::{limits, many, peers, silent, strangers};
use crate::unused;

/// The scenario of that name.
pub(crate) fn find(name: &str) -> Option<fn(Scene)> {
    let modules = [
        arguments::SCENARIOS,
        connections::SCENARIOS,
        fabrics::SCENARIOS,
        fused::SCENARIOS,
        lifetimes::SCENARIOS,
        messages::SCENARIOS,
        cable::SCENARIOS,
        gpu::SCENARIOS,
        look::SCENARIOS,
        stream::SCENARIOS,
        loading::SCENARIOS,
        near::SCENARIOS,
        ofi::SCENARIOS,
        ofi::acceptance::SCENARIOS,
        ofi::crowd::SCENARIOS,
        ofi::soak::SCENARIOS,
        ofi::strict::SCENARIOS,
        ofi::tried::SCENARIOS,
        counts::SCENARIOS,
        sizes::SCENARIOS,
        unused::SCENARIOS,
        limits::SCENARIOS,
        many::SCENARIOS,
        peers::SCENARIOS,
        silent::SCENARIOS,
        strangers::SCENARIOS,
        churn::SCENARIOS,
        crowds::SCENARIOS,
        flushes::SCENARIOS,
        neighbours::SCENARIOS,
    ];
    let mut all = modules.iter().flat_map(|scenarios| scenarios.iter());
    all.find(|(known, _)| *known == name).map(|(_, scenario)| *scenario)
}

/// A list of scenarios with their names.
macro_rules! scenarios {
    ($($name:ident),* $(,)?) => {
        pub(crate) const SCENARIOS: &[(&str, fn($crate::run::Scene))] = &[$((stringify!($name), $name)),*];
    };
}
