//! The text of the device header, for programs that compile kernels at run time without installed files. The files are in
//! `include/trunkline`.

/// A file of the header: the name by which `#include` finds it, and its text.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct HeaderFile {
    /// The path in `#include`, in kernels and in other files of the header.
    pub name: &'static str,
    /// The contents.
    pub text: &'static str,
}

macro_rules! files {
    ($($name:literal),* $(,)?) => {
        [$(HeaderFile { name: $name, text: include_str!(concat!("../../../include/", $name)) }),*]
    };
}

/// All files. A kernel includes the first, which includes the others.
pub const FILES: [HeaderFile; 17] = files![
    "trunkline/device.h",
    "trunkline/device/abi.h",
    "trunkline/device/entry.h",
    "trunkline/device/group.h",
    "trunkline/device/lane.h",
    "trunkline/device/mlx5.h",
    "trunkline/device/original.h",
    "trunkline/device/platform.h",
    "trunkline/device/platform_cuda.h",
    "trunkline/device/platform_hip.h",
    "trunkline/device/platform_host.h",
    "trunkline/device/queue.h",
    "trunkline/device/slot.h",
    "trunkline/device/stream.h",
    "trunkline/device/successor.h",
    "trunkline/device/turns.h",
    "trunkline/device/window.h",
];
