//! The contract of fabrics, over those wires of the software NIC that stay inside a host.

use trunkline_fabric::conformance::{self, ConformanceSetup};
use trunkline_fabric::{Fabric, RailConfig};
use trunkline_softnic::{CopyMode, SoftConfig, SoftFabric, SoftRail};

use crate::trials::{Case, Outcome};

/// Rails of one fabric, whose ends are in one process.
struct Mem;

/// Rails of two fabrics, with a segment of shared memory between them.
struct Shm;

impl Mem {
    fn fabric() -> SoftFabric {
        SoftFabric::new(SoftConfig::default()).unwrap()
    }
}

impl ConformanceSetup for Mem {
    type Rail = SoftRail;

    fn open_rails(&self, config: &RailConfig) -> (SoftRail, SoftRail) {
        let fabric = Self::fabric();
        (fabric.open_rail(0, config).unwrap(), fabric.open_rail(0, config).unwrap())
    }

    fn open_trio(&self, config: &RailConfig) -> Option<[SoftRail; 3]> {
        let fabric = Self::fabric();
        Some([(); 3].map(|()| fabric.open_rail(0, config).unwrap()))
    }
}

impl Shm {
    fn fabric() -> SoftFabric {
        SoftFabric::new(SoftConfig { copy: CopyMode::Staging, ..SoftConfig::default() }).unwrap()
    }
}

impl ConformanceSetup for Shm {
    type Rail = SoftRail;

    fn open_rails(&self, config: &RailConfig) -> (SoftRail, SoftRail) {
        (Self::fabric().open_rail(0, config).unwrap(), Self::fabric().open_rail(0, config).unwrap())
    }

    fn open_trio(&self, config: &RailConfig) -> Option<[SoftRail; 3]> {
        let (first, other) = (Self::fabric(), Self::fabric());
        Some([&first, &first, &other].map(|fabric| fabric.open_rail(0, config).unwrap()))
    }
}

/// The cases of the suite, each over both kinds of rails.
macro_rules! cases {
    ($($case:ident),* $(,)?) => {
        /// Over rails of one fabric.
        pub(crate) const OVER_MEM: &[Case] = &[$((stringify!($case), || -> Outcome {
            conformance::$case(&Mem);
            Ok(())
        })),*];
        /// Over shared memory.
        pub(crate) const OVER_SHM: &[Case] = &[$((stringify!($case), || -> Outcome {
            conformance::$case(&Shm);
            Ok(())
        })),*];
    };
}

// The software NIC registers no memory by descriptors.
trunkline_fabric::conformance_cases! { cases; }
