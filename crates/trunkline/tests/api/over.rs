//! The fabrics of test jobs: the wires of the software NIC, libfabric's provider for TCP, the enforcing provider with
//! several configurations, and several NICs. If the environment names a fabric, only that one.

use std::ffi::OsString;
use std::path::Path;

use strict_fi::StrictReport;

/// The fabrics, with their environment and the number of NICs per rank.
const ALL: [Over; 9] = [
    Over::new("soft:shm", &[], &[1]),
    Over::new("soft:tcp", &[], &[1]),
    Over::new("soft:tcp", &[("TRUNKLINE_SOFT_NICS", "2")], &[1, 2]),
    Over::new("ofi:tcp", &[], &[1]),
    Over::new("ofi:tcp", &[("TRUNKLINE_OFI_NICS", "2")], &[2]),
    // Enforces the rules of Slingshot's provider.
    Over::new(STRICT, &[], &[1]),
    // Enforces the rules of EFA's provider, and reorders as that may.
    Over::new(
        STRICT,
        &[
            ("FI_STRICT_MR", "prov_key,allocated,local,virt_addr"),
            ("FI_STRICT_PROGRESS", "auto"),
            ("FI_STRICT_REORDER", "0.5"),
            ("FI_STRICT_CQ_DATA", "4"),
        ],
        &[1],
    ),
    // Accepts few operations, and often returns -FI_EAGAIN.
    Over::new(
        STRICT,
        &[
            ("FI_STRICT_MR", "none"),
            ("FI_STRICT_DEPTH", "64"),
            ("FI_STRICT_EAGAIN", "0.5"),
            ("FI_STRICT_INJECT", "0"),
        ],
        &[1],
    ),
    Over::new(STRICT, &[("FI_STRICT_NICS", "3"), ("FI_STRICT_REORDER", "0.3")], &[3, 2]),
];

/// Fabrics whose NICs execute atomics.
const BY_NICS: [Over; 2] = [
    Over::new("soft:shm", &[("TRUNKLINE_ATOMICS", "nic")], &[1]),
    Over::new("soft:tcp", &[("TRUNKLINE_ATOMICS", "nic")], &[1]),
];

/// The number of other fabrics than plain ones that a test runs over.
const FEW: usize = 2;
const STRICT: &str = "ofi:strict";
/// The variable with the job's folder.
pub(crate) const FOLDER: &str = "TEST_FOLDER";
/// The variable with the number of NICs of a rank.
pub(crate) const NICS: &str = "TEST_NICS";

/// A fabric of test jobs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Over {
    fabric: &'static str,
    more: &'static [(&'static str, &'static str)],
    /// The number of NICs of each rank, repeated.
    nics: &'static [usize],
}

impl Over {
    const fn new(
        fabric: &'static str,
        more: &'static [(&'static str, &'static str)],
        nics: &'static [usize],
    ) -> Self {
        Self { fabric, more, nics }
    }

    /// Returns the fabrics for a test of this name: all plain ones and two others, or all with `TRUNKLINE_FULL`. The
    /// length of the name selects the two, so that the tests together cover all. Tests of atomics also run over NICs
    /// that execute them. Fabrics that are not installed are excluded. If the environment names a fabric, it alone is
    /// returned, with one NIC and with two.
    pub(crate) fn here(name: &str) -> Vec<Self> {
        if let Ok(named) = std::env::var("TRUNKLINE_FABRIC") {
            let named = &*named.leak();
            return [&[1][..], &[2, 1]].map(|nics| Self::new(named, &[], nics)).into();
        }
        let folders = ["/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib"];
        let libfabric = folders.iter().any(|folder| Path::new(folder).join("libfabric.so.1").exists());
        if !libfabric {
            skip("the API over libfabric", "libfabric is not installed (Debian: libfabric1)");
        }
        let full = std::env::var_os("TRUNKLINE_FULL").is_some();
        let (plain, others): (Vec<_>, Vec<_>) = ALL.into_iter().partition(Self::is_plain);
        let count = others.len();
        let few = others.into_iter().cycle().skip(name.len()).take(if full { count } else { FEW });
        let by_nics = BY_NICS.into_iter().filter(|_| name.starts_with("atomics::"));
        let all = plain.into_iter().chain(few).chain(by_nics);
        all.filter(|over| libfabric || !over.fabric.starts_with("ofi")).collect()
    }

    pub(crate) fn fabric(&self) -> &str {
        self.fabric
    }

    /// Returns the default configuration of a fabric, with one NIC.
    pub(crate) fn is_plain(&self) -> bool {
        self.more.is_empty() && self.nics == [1]
    }

    /// Returns the environment of a rank; for the enforcing provider, `folder` contains it.
    pub(crate) fn environment(&self, rank: usize, folder: &Path) -> Vec<(&'static str, OsString)> {
        let mut all: Vec<(&str, OsString)> = vec![
            ("TRUNKLINE_FABRIC", self.fabric.into()),
            (FOLDER, folder.into()),
            (NICS, self.nics[rank % self.nics.len()].to_string().into()),
        ];
        match self.fabric {
            STRICT => all.extend([
                ("FI_PROVIDER_PATH", folder.into()),
                ("FI_PROVIDER", "strict".into()),
                ("FI_STRICT_REPORT", folder.join("report").into()),
            ]),
            _ => all.push(("TRUNKLINE_OFI_DOMAIN", "lo".into())),
        }
        all.extend(self.more.iter().map(|&(name, value)| (name, value.into())));
        all
    }

    /// Installs the enforcing provider into a folder, if this fabric is that.
    pub(crate) fn prepare(&self, folder: &Path) {
        if self.fabric == STRICT {
            strict_fi::place_in(folder).unwrap();
        }
    }

    /// Checks that no rule of the enforcing provider was broken, and that all objects were closed if all ranks
    /// succeeded.
    pub(crate) fn look_at(&self, folder: &Path, well: Option<usize>) {
        if self.fabric != STRICT {
            return;
        }
        let found = StrictReport::read_file(&folder.join("report")).unwrap();
        assert!(found.violations.is_empty(), "{self:?}: rules were broken: {:#?}", found.violations);
        if let Some(ranks) = well {
            let domains = (0..ranks).map(|rank| self.nics[rank % self.nics.len()]).sum::<usize>();
            assert!(found.accounts.len() >= domains, "{self:?}: accounts: {:#?}", found.accounts);
            assert!(
                found.open_accounts().is_empty(),
                "{self:?}: domains were not closed: {:#?}",
                found.open_accounts()
            );
        }
    }
}

/// Reports a skipped test and the reason in the log that `./test` reads. Fails if libfabric is required.
fn skip(name: &str, reason: &str) {
    use std::io::Write as _;
    let required = std::env::var("TRUNKLINE_REQUIRE").unwrap_or_default();
    assert!(!required.split(',').any(|word| word.trim() == "ofi"), "{name} must run: {reason}");
    println!("SKIPPED {name}: {reason}");
    if let Some(path) = std::env::var_os("TRUNKLINE_SKIP_LOG") {
        let file = std::fs::OpenOptions::new().append(true).create(true).open(path);
        // One write call, because other processes write to the same file.
        let noted = file.and_then(|mut file| file.write_all(format!("{name}: {reason}\n").as_bytes()));
        assert!(noted.is_ok(), "cannot write to the log of skipped tests: {noted:?}");
    }
}
