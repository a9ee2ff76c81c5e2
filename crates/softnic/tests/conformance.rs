//! The conformance suite, for each wire and mode of the software NIC.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot continue fails")]

use std::os::fd::AsFd as _;
use std::sync::Arc;

use trunkline_fabric::conformance::ConformanceSetup;
use trunkline_fabric::trace::{EventRecorder, TracedFabric, TracedRail};
use trunkline_fabric::{
    AccessRights, ExportedDmaBuf, Fabric, Rail as _, RailConfig, RegionPurpose, RegisterError,
};
use trunkline_mem::MemoryRange;
use trunkline_proto::time::Instant;
use trunkline_softnic::{CopyMode, SoftConfig, SoftFabric, SoftRail, WireMode};

/// Opens rails from a configuration.
struct Soft {
    config: SoftConfig,
    fabrics: usize,
}

impl Soft {
    fn fabric(&self) -> SoftFabric {
        SoftFabric::new(self.config.clone()).unwrap()
    }
}

impl ConformanceSetup for Soft {
    type Rail = SoftRail;

    fn open_rails(&self, config: &RailConfig) -> (SoftRail, SoftRail) {
        let first = self.fabric();
        let a = first.open_rail(0, config).unwrap();
        if self.fabrics == 1 {
            return (a, first.open_rail(0, config).unwrap());
        }
        (a, self.fabric().open_rail(0, config).unwrap())
    }

    fn open_trio(&self, config: &RailConfig) -> Option<[SoftRail; 3]> {
        let first = self.fabric();
        let other = if self.fabrics == 1 { &first } else { &self.fabric() };
        let open = |fabric: &SoftFabric| fabric.open_rail(0, config).unwrap();
        Some([open(&first), open(&first), open(other)])
    }

    fn has_events(&self) -> bool {
        self.config.wire == WireMode::Tcp
    }
}

/// The same, recorded, until the buffer is full.
struct Recorded(Soft);

impl Recorded {
    fn fabric(&self) -> TracedFabric<SoftFabric> {
        let recorder = EventRecorder::new(64, Instant::default);
        TracedFabric::new(self.0.fabric(), Some(Arc::new(recorder)))
    }
}

impl ConformanceSetup for Recorded {
    type Rail = TracedRail<SoftRail>;

    fn open_rails(&self, config: &RailConfig) -> (Self::Rail, Self::Rail) {
        let open = || self.fabric().open_rail(0, config).unwrap();
        (open(), open())
    }

    fn open_trio(&self, config: &RailConfig) -> Option<[Self::Rail; 3]> {
        let (first, other) = (self.fabric(), self.fabric());
        Some([&first, &first, &other].map(|fabric| fabric.open_rail(0, config).unwrap()))
    }
}

mod recorded {
    use super::*;
    trunkline_fabric::fabric_conformance!(Recorded(Soft { config: SoftConfig::default(), fabrics: 2 }));
}

mod mem {
    use super::*;
    trunkline_fabric::fabric_conformance!(Soft { config: SoftConfig::default(), fabrics: 1 });
}

mod shm {
    use super::*;
    trunkline_fabric::fabric_conformance!(Soft {
        config: SoftConfig { copy: CopyMode::Staging, ..SoftConfig::default() },
        fabrics: 2
    });
}

mod shm_with_pull {
    use super::*;
    trunkline_fabric::fabric_conformance!(Soft {
        // Fabrics of one process stage bytes for each other: direct copies need two processes, or links of one fabric.
        config: SoftConfig { copy: CopyMode::Pull, wire: WireMode::Shm, ..SoftConfig::default() },
        fabrics: 1
    });
}

mod shm_with_share {
    use super::*;
    trunkline_fabric::fabric_conformance!(Soft {
        config: SoftConfig {
            copy: CopyMode::Share,
            wire: WireMode::Shm,
            start_position: u64::MAX - 20,
            ..SoftConfig::default()
        },
        fabrics: 1
    });
}

mod shm_forced_inside_one_fabric {
    use super::*;
    trunkline_fabric::fabric_conformance!(Soft {
        config: SoftConfig { wire: WireMode::Shm, ..SoftConfig::default() },
        fabrics: 1
    });
}

mod small_rings_near_the_wrap {
    use super::*;
    trunkline_fabric::fabric_conformance!(Soft {
        config: SoftConfig {
            slots: 16,
            payload: 4096,
            segment: 1024,
            start_position: u64::MAX - 20,
            virtual_addresses: true,
            copy: CopyMode::Staging,
            ..SoftConfig::default()
        },
        fabrics: 2
    });
}

mod tcp {
    use super::*;
    trunkline_fabric::fabric_conformance!(Soft {
        config: SoftConfig { wire: WireMode::Tcp, ..SoftConfig::default() },
        fabrics: 2
    });
}

mod tcp_inside_one_fabric_near_the_wrap {
    use super::*;
    trunkline_fabric::fabric_conformance!(Soft {
        config: SoftConfig {
            wire: WireMode::Tcp,
            addresses: vec!["::1".parse().unwrap()],
            start_position: u64::MAX - 20,
            virtual_addresses: true,
            ..SoftConfig::default()
        },
        fabrics: 1
    });
}

mod tcp_with_delayed_visibility {
    use super::*;
    trunkline_fabric::fabric_conformance!(Soft {
        config: SoftConfig { wire: WireMode::Tcp, delayed_visibility: true, ..SoftConfig::default() },
        fabrics: 2
    });
}

mod delayed_visibility {
    use super::*;
    trunkline_fabric::fabric_conformance!(Soft {
        config: SoftConfig { delayed_visibility: true, ..SoftConfig::default() },
        fabrics: 1
    });
}

mod dmabufs {
    use super::*;
    const CONFIG: fn() -> SoftConfig = || SoftConfig { takes_dmabufs: true, ..SoftConfig::default() };
    mod mem {
        use super::*;
        trunkline_fabric::fabric_conformance!(@cases Soft { config: CONFIG(), fabrics: 1 };
            exported_bytes_are_reached_by_their_descriptor, exported_bytes_end_where_the_memory_does);
    }
    mod shm {
        use super::*;
        trunkline_fabric::fabric_conformance!(@cases Soft { config: SoftConfig { virtual_addresses: true, ..CONFIG() }, fabrics: 2 };
            exported_bytes_are_reached_by_their_descriptor, exported_bytes_end_where_the_memory_does);
    }
    mod shm_with_pull {
        use super::*;
        trunkline_fabric::fabric_conformance!(@cases Soft {
            config: SoftConfig { copy: CopyMode::Pull, wire: WireMode::Shm, ..CONFIG() },
            fabrics: 1
        }; exported_bytes_are_reached_by_their_descriptor, exported_bytes_end_where_the_memory_does);
    }
    mod tcp {
        use super::*;
        trunkline_fabric::fabric_conformance!(@cases Soft { config: SoftConfig { wire: WireMode::Tcp, ..CONFIG() }, fabrics: 2 };
            exported_bytes_are_reached_by_their_descriptor, exported_bytes_end_where_the_memory_does);
    }

    #[test]
    fn a_descriptor_that_cannot_be_mapped_is_refused() {
        let ends =
            Soft { config: CONFIG(), fabrics: 1 }.open_pair(&trunkline_fabric::conformance::default_config());
        let (read, _write) = rustix::pipe::pipe().unwrap();
        let exported = ExportedDmaBuf { fd: read.as_fd(), offset: 0 };
        let refused = ends.a.registrar().register_exported(
            &MemoryRange::heap(64),
            exported,
            AccessRights::ALL,
            RegionPurpose::Heap,
        );
        assert!(matches!(refused, Err(RegisterError::Device { .. })), "{refused:?}");
        let plain = Soft { config: SoftConfig::default(), fabrics: 1 };
        let ends = plain.open_pair(&trunkline_fabric::conformance::default_config());
        let refused = ends.a.registrar().register_exported(
            &MemoryRange::heap(64),
            exported,
            AccessRights::ALL,
            RegionPurpose::Heap,
        );
        assert!(matches!(refused, Err(RegisterError::Kind(_))), "{refused:?}");
    }
}

mod pipelines {
    use super::*;
    trunkline_fabric::fabric_conformance!(@cases Soft {
        config: SoftConfig { pipelines: 3, max_qp: 13, ..SoftConfig::default() },
        fabrics: 2
    };
        links_are_spread_over_pipelines,
        links_are_created_on_the_requested_pipeline,
        unknown_pipelines_are_refused,
        destroyed_links_leave_their_pipeline,
        full_pipeline_errors_name_the_pipeline,
    );
}
