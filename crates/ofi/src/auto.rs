//! The selection for `TRUNKLINE_FABRIC=auto`: EFA or Slingshot, if this host has such a device. Devices are detected in `/sys`, which is cheap;
//! libfabric, which takes a while to open, is opened only if one was detected.

use std::path::Path;

use crate::{NoNic, OfiConfig, OfiFabric};

/// A device for which libfabric has a provider.
#[derive(Clone, Debug, Eq, PartialEq)]
struct ProviderDevice {
    provider: &'static str,
    /// How it was detected.
    sign: String,
}

/// The selected fabric, and why.
pub struct AutoSelection {
    /// libfabric's NICs, if they are selected.
    pub fabric: Option<OfiFabric>,
    /// A line for the user, if a device was detected.
    pub line: Option<String>,
    /// Why libfabric's NICs are not selected although a device was detected.
    pub failure: Option<NoNic>,
}

impl AutoSelection {
    /// Detects devices below `root`, which is `/`, and opens them by `open`. `config` contains the other settings.
    #[must_use]
    pub fn detect_devices(
        root: &Path,
        config: &OfiConfig,
        open: impl FnOnce(&OfiConfig) -> Result<OfiFabric, NoNic>,
    ) -> Self {
        let Some(ProviderDevice { provider, sign }) = find_device(root) else {
            return Self { fabric: None, line: None, failure: None };
        };
        let config = OfiConfig { provider: Some(provider.to_owned()), ..config.clone() };
        match open(&config) {
            Ok(fabric) => {
                let line = format!("TRUNKLINE_FABRIC=auto selects ofi:{provider}, because {sign}");
                Self { fabric: Some(fabric), line: Some(line), failure: None }
            }
            // Not an error of the job: the caller falls back to another fabric, and the line states why.
            Err(why) => {
                let line =
                    format!("TRUNKLINE_FABRIC=auto does not select ofi:{provider} although {sign}: {why}");
                Self { fabric: None, line: Some(line), failure: Some(why) }
            }
        }
    }
}

/// Returns the names in a folder, sorted; none if the folder does not exist.
fn list_names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    // Sorted, because readdir(3) returns entries in any order and every start must select the same device.
    names.sort();
    names
}

fn find_device(root: &Path) -> Option<ProviderDevice> {
    let devices = root.join("sys/class/infiniband");
    // Checks the driver, because the name of an RDMA device depends on udev rules.
    let is_efa = |name: &String| {
        let driver = std::fs::read_link(devices.join(name).join("device/driver"));
        driver.is_ok_and(|driver| driver.file_name().is_some_and(|driver| driver == "efa"))
    };
    if let Some(name) = list_names(&devices).into_iter().find(is_efa) {
        return Some(ProviderDevice { provider: "efa", sign: format!("the driver of {name} is efa") });
    }
    // Either sign is enough: the class in sysfs or the device node.
    let of_class = list_names(&root.join("sys/class/cxi")).into_iter().next();
    let of_dev = || list_names(&root.join("dev")).into_iter().find(|name| name.starts_with("cxi"));
    let name = of_class.or_else(of_dev)?;
    Some(ProviderDevice { provider: "cxi", sign: format!("{name} exists") })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use super::*;

    /// A temporary folder in the place of `/`.
    struct Root(PathBuf);

    impl Root {
        fn new() -> Self {
            static MADE: AtomicUsize = AtomicUsize::new(0);
            let name = format!("trunkline-auto-{}-{}", std::process::id(), MADE.fetch_add(1, Relaxed));
            let root = std::env::temp_dir().join(name);
            let _ = std::fs::remove_dir_all(&root);
            std::fs::create_dir_all(&root).unwrap();
            Self(root)
        }

        /// Adds a device with that driver.
        fn device(&self, name: &str, driver: &str) -> &Self {
            let device = self.0.join("sys/class/infiniband").join(name).join("device");
            std::fs::create_dir_all(&device).unwrap();
            symlink(format!("../../../bus/pci/drivers/{driver}"), device.join("driver")).unwrap();
            self
        }

        fn folder(&self, path: &str) -> &Self {
            std::fs::create_dir_all(self.0.join(path)).unwrap();
            self
        }

        fn found(&self) -> Option<(&'static str, String)> {
            find_device(&self.0).map(|ProviderDevice { provider, sign }| (provider, sign))
        }
    }

    impl Drop for Root {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn devices_are_known_by_their_driver() {
        assert_eq!(Root::new().found(), None);
        assert_eq!(
            Root::new().device("mlx5_0", "mlx5_core").folder("sys/class/cxi").folder("dev").found(),
            None
        );
        let efa = Root::new();
        efa.device("mlx5_0", "mlx5_core").device("rdmap1s0", "efa").device("rdmap0s6", "efa");
        assert_eq!(efa.found(), Some(("efa", "the driver of rdmap0s6 is efa".to_owned())));
        // A device with such a name but another driver does not count.
        assert_eq!(Root::new().device("efa_0", "bnxt_re").folder("sys/class/infiniband/efa_1").found(), None);
        let cxi = Some(("cxi", "cxi0 exists".to_owned()));
        assert_eq!(Root::new().folder("sys/class/cxi/cxi0").found(), cxi);
        assert_eq!(Root::new().folder("dev/cxi0").folder("dev/null").found(), cxi);
        assert_eq!(efa.folder("dev/cxi0").found().unwrap().0, "efa", "as ofi alone selects it");
    }

    #[test]
    fn libfabric_is_opened_only_if_a_device_exists() {
        let root = Root::new();
        root.device("mlx5_0", "mlx5_core");
        let auto = AutoSelection::detect_devices(&root.0, &OfiConfig::default(), |_| panic!("opened"));
        assert!(auto.fabric.is_none() && auto.line.is_none());
    }

    #[test]
    fn fallback_states_its_reason() {
        let root = Root::new();
        root.device("rdmap0s6", "efa");
        let library = Some("/no/such/libfabric.so.1".into());
        let config = OfiConfig { library, domain: Some("one".to_owned()), ..OfiConfig::default() };
        let auto = AutoSelection::detect_devices(&root.0, &config, |asked| {
            assert_eq!(*asked, OfiConfig { provider: Some("efa".to_owned()), ..config.clone() });
            OfiFabric::new(asked)
        });
        let line = auto.line.unwrap();
        assert!(
            auto.fabric.is_none()
                && auto.failure.is_some()
                && line.contains("auto does not select ofi:efa although the driver of rdmap0s6 is efa"),
            "{line}"
        );
        assert!(line.contains("/no/such/libfabric.so.1 cannot be opened") && !line.contains('\n'), "{line}");
    }
}
