//! The selection of ports by `TRUNKLINE_IB_HCA` or `NCCL_IB_HCA`. Pure; called once for each port that is found.

use crate::config::ConfigTextError;

/// Most entries of a list.
const ENTRIES_MAX: usize = 32;

/// A list of devices and ports: `[^][=]name[:port[:rail[:plane]]],...`.
///
/// `^` selects the devices that the list does not name; `=` compares whole names instead of their beginnings; if both are given, `^`
/// is first. An entry without a port is for all ports. Without entries everything is selected. Rails and planes are names
/// for the library that uses the NIC; they select nothing here.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct HcaFilter {
    excludes: bool,
    exact: bool,
    entries: Vec<HcaEntry>,
}

/// One entry.
#[derive(Clone, Debug, Eq, PartialEq)]
struct HcaEntry {
    name: String,
    port: Option<u32>,
}

impl HcaFilter {
    /// Parses a list.
    ///
    /// # Errors
    /// [`ConfigTextError`], when a port, rail or plane is no number, or there are more than 32
    /// entries.
    pub fn parse(text: &str) -> Result<Self, ConfigTextError> {
        let (excludes, text) = strip_mark(text, '^');
        let (exact, text) = strip_mark(text, '=');
        let entries =
            text.split(',').filter(|one| !one.is_empty()).map(parse_entry).collect::<Result<Vec<_>, _>>()?;
        if entries.len() > ENTRIES_MAX {
            return Err(text_error(text, "has more than 32 entries"));
        }
        Ok(Self { excludes, exact, entries })
    }

    /// Whether a port of a device is selected.
    #[must_use]
    pub fn matches_port(&self, device: &str, port: u32) -> bool {
        if self.entries.is_empty() {
            return true;
        }
        let named = self.entries.iter().any(|one| {
            let name = if self.exact { device == one.name } else { device.starts_with(one.name.as_str()) };
            name && one.port.is_none_or(|wanted| wanted == port)
        });
        named != self.excludes
    }
}

fn strip_mark(text: &str, mark: char) -> (bool, &str) {
    text.strip_prefix(mark).map_or((false, text), |rest| (true, rest))
}

fn text_error(text: &str, fault: &'static str) -> ConfigTextError {
    ConfigTextError { text: text.to_owned(), fault }
}

fn parse_entry(text: &str) -> Result<HcaEntry, ConfigTextError> {
    let mut words = text.split(':');
    let name = words.next().unwrap_or_default().to_owned();
    let mut number = |what| match words.next() {
        None | Some("" | "-1") => Ok(None),
        Some(word) => word.parse::<u32>().map(Some).map_err(|_| text_error(text, what)),
    };
    let port = number("has a port that is no number")?;
    number("has a rail that is no number")?;
    number("has a plane that is no number")?;
    match words.next() {
        None => Ok(HcaEntry { name, port }),
        Some(_) => Err(text_error(text, "has more than a name, a port, a rail and a plane")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PORTS: [(&str, u32); 5] =
        [("mlx5_0", 1), ("mlx5_1", 1), ("mlx5_1", 2), ("mlx5_10", 1), ("rxe0", 1)];

    fn taken(list: &str) -> Vec<usize> {
        let filter = HcaFilter::parse(list).unwrap();
        (0..PORTS.len()).filter(|&at| filter.matches_port(PORTS[at].0, PORTS[at].1)).collect()
    }

    #[test]
    fn lists_take_what_they_name() {
        assert_eq!(taken(""), [0, 1, 2, 3, 4]);
        assert_eq!(taken("mlx5"), [0, 1, 2, 3]);
        assert_eq!(taken("mlx5_1"), [1, 2, 3], "the beginning of a name");
        assert_eq!(taken("=mlx5_1"), [1, 2], "the whole of it");
        assert_eq!(taken("mlx5_1:2"), [2]);
        assert_eq!(taken("=mlx5_1:1,rxe0"), [1, 4]);
        assert_eq!(taken("=mlx5"), [0_usize; 0]);
        assert_eq!(taken(",rxe0,"), [4]);
        assert_eq!(taken("mlx5_1:1:3:0"), [1, 3], "rails and planes choose nothing");
        assert_eq!(taken("mlx5_1:-1"), [1, 2, 3]);
    }

    #[test]
    fn lists_may_exclude() {
        assert_eq!(taken("^mlx5_1"), [0, 4]);
        assert_eq!(taken("^=mlx5_1"), [0, 3, 4]);
        assert_eq!(taken("^=mlx5_1:2"), [0, 1, 3, 4]);
        assert_eq!(taken("^"), [0, 1, 2, 3, 4], "nothing is excluded");
        // In the other order `^` is part of a name.
        assert_eq!(taken("=^mlx5_1"), [0_usize; 0]);
    }

    #[test]
    fn what_is_no_list_is_refused() {
        for (list, why) in [
            ("mlx5_0:one", "port that is no number"),
            ("mlx5_0:1:x", "rail that is no number"),
            ("mlx5_0:1:2:y", "plane that is no number"),
            ("mlx5_0:1:2:3:4", "more than a name"),
        ] {
            let error = HcaFilter::parse(list).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
        assert!(HcaFilter::parse(&"a,".repeat(32)).is_ok());
        assert!(HcaFilter::parse(&"a,".repeat(33)).is_err());
    }
}
