//! The selection when no fabric is named, over a folder in the place of `/`.

use trunkline_ofi::{AutoSelection, OfiConfig, OfiFabric};

use crate::world::{Echo, Kind, World};

#[test]
fn slingshot_is_selected_and_the_reason_reported() {
    let root = std::env::temp_dir().join(format!("trunkline-recording-auto-{}", std::process::id()));
    std::fs::create_dir_all(root.join("sys/class/cxi/cxi0")).unwrap();
    let (world, library) = World::begin(Kind::default());
    *world.echo.lock().unwrap() = Echo::Whole;
    let auto = AutoSelection::detect_devices(&root, &OfiConfig::default(), |config| {
        OfiFabric::with_library(&library, config)
    });
    std::fs::remove_dir_all(&root).unwrap();
    assert_eq!(auto.fabric.unwrap().provider_name(), "cxi");
    assert_eq!(auto.line.unwrap(), "TRUNKLINE_FABRIC=auto selects ofi:cxi, because cxi0 exists");
}
