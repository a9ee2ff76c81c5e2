//! Describes the machine of the sweep, for the head of a report.

use std::time::{SystemTime, UNIX_EPOCH};

use super::date;

/// The processors, the memory, the kernel and the day, in one line.
pub(crate) fn describe_machine() -> String {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let system = rustix::system::uname();
    let name = system.sysname().to_string_lossy();
    let release = system.release().to_string_lossy();
    let memory = rustix::system::sysinfo();
    let gib = memory.totalram as f64 * f64::from(memory.mem_unit) / f64::from(1 << 30);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let model = processor_model(&std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default());
    format!("{cores} processors ({model}), {gib:.0} GiB, {name} {release}, {}", date::of_unix(now))
}

fn processor_model(info: &str) -> String {
    let line = info.lines().find_map(|line| line.strip_prefix("model name"));
    let model = line.map(|line| line.trim_start_matches([' ', '\t', ':']).trim());
    model.unwrap_or(std::env::consts::ARCH).to_owned()
}

#[cfg(test)]
mod tests {
    use super::processor_model;

    #[test]
    fn processor_model_falls_back_to_the_architecture() {
        assert_eq!(processor_model("processor\t: 0\nmodel name\t: A B 7 \nflags: x"), "A B 7");
        assert_eq!(processor_model("CPU architecture: 8"), std::env::consts::ARCH);
    }
}
