//! Removes from a report the host and user names, the paths in the home folder, and the IP and hardware addresses.
//!
//! Called by `selftest` for each text of a report. Pure, except that `ReportRedactor::of_system` reads the names from
//! the system.

use std::net::IpAddr;

/// Replacements of names.
const HOST: &str = "<host>";
const USER: &str = "<user>";
const HOME: &str = "<home>";
const ADDRESS: &str = "<address>";
/// Names that identify no host or user, or that are words of messages.
const COMMON: [&str; 4] = ["localhost", "root", "user", "trunkline"];
/// A name of one letter identifies nothing, and its replacement would change words of messages.
const NAME_BYTES_MIN: usize = 2;
/// Characters that end a path in a message.
const PATH_ENDS: &str = " \t\n\"'`(),;:<>|=";

/// Removes names and addresses from the texts of a report.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReportRedactor {
    /// Names, longest first, and their replacements.
    names: Vec<(String, &'static str)>,
    homes: Vec<String>,
    /// Whether names stay.
    keeps_names: bool,
}

impl ReportRedactor {
    /// Creates a redactor for the names of this host and user, and of the hosts that the user named.
    pub(crate) fn of_system(named_hosts: &[String]) -> Self {
        let node = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let uid = rustix::process::getuid().as_raw().to_string();
        let accounts = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
        let account = accounts.lines().map(|line| line.split(':').collect::<Vec<_>>());
        let account = account.into_iter().find(|fields| fields.get(2) == Some(&&*uid)).unwrap_or_default();
        let field = |at: usize| account.get(at).map(|text| (*text).to_owned());
        let variable = |name: &str| std::env::var(name).ok();
        let hosts = named_hosts.iter().cloned().chain([node]).chain(variable("HOSTNAME"));
        let users = ["USER", "LOGNAME", "SUDO_USER"].into_iter().filter_map(variable).chain(field(0));
        let homes = variable("HOME").into_iter().chain(field(5));
        Self::new(hosts.collect(), users.collect(), homes.collect())
    }

    /// Creates a redactor that changes nothing.
    pub(crate) fn keeping_names() -> Self {
        Self { keeps_names: true, ..Self::default() }
    }

    fn new(hosts: Vec<String>, users: Vec<String>, homes: Vec<String>) -> Self {
        let short = |host: &String| host.split('.').next().map(str::to_owned);
        let bare = |host: &String| host.rsplit_once('@').map(|(_, host)| host.to_owned());
        let more: Vec<String> = hosts.iter().filter_map(short).chain(hosts.iter().filter_map(bare)).collect();
        let hosts = hosts.into_iter().chain(more).map(|name| (name, HOST));
        let mut names: Vec<(String, &'static str)> = hosts
            .chain(users.into_iter().map(|name| (name, USER)))
            .filter(|(name, _)| name.len() >= NAME_BYTES_MIN && !COMMON.contains(&name.as_str()))
            .collect();
        names.sort_by_key(|(name, _)| std::cmp::Reverse(name.len()));
        names.dedup();
        let homes = homes.into_iter().map(|home| home.trim_end_matches('/').to_owned());
        Self { names, homes: homes.filter(|home| home.len() > 1).collect(), keeps_names: false }
    }

    /// Returns the text without names and addresses.
    pub(crate) fn redact_text(&self, text: &str) -> String {
        if self.keeps_names {
            return text.to_owned();
        }
        let mut text = text.to_owned();
        for home in &self.homes {
            text = without_paths(&text, home);
        }
        text = without_addresses(&text);
        for (name, stand_in) in &self.names {
            text = without_word(&text, name, stand_in);
        }
        text
    }

    /// Cleans every string in a JSON value, except keys.
    pub(crate) fn redact_json(&self, value: &mut serde_json::Value) {
        match value {
            serde_json::Value::String(text) => *text = self.redact_text(text),
            serde_json::Value::Array(values) => values.iter_mut().for_each(|one| self.redact_json(one)),
            serde_json::Value::Object(map) => map.values_mut().for_each(|one| self.redact_json(one)),
            _ => {}
        }
    }
}

/// Replaces each path below a folder, to its end.
fn without_paths(text: &str, home: &str) -> String {
    let mut found = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(home) {
        let (before, path) = rest.split_at(at);
        let after = &path[home.len()..];
        found.push_str(before);
        // `/home/ann` is no beginning of `/home/anna`.
        if after.starts_with(|letter: char| letter.is_alphanumeric() || "-_.".contains(letter)) {
            found.push_str(home);
            rest = after;
            continue;
        }
        found.push_str(HOME);
        rest = after.find(|letter| PATH_ENDS.contains(letter)).map_or("", |end| &after[end..]);
    }
    found + rest
}

/// Replaces each occurrence of a name that is not part of a longer word.
fn without_word(text: &str, name: &str, stand_in: &str) -> String {
    let mut found = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(name) {
        let before = &rest[..at];
        let after = &rest[at + name.len()..];
        let is_part = |letter: char| letter.is_alphanumeric() || letter == '_';
        let previous = before.chars().next_back().or_else(|| found.chars().next_back());
        let is_word = !previous.is_some_and(is_part) && !after.chars().next().is_some_and(is_part);
        found.push_str(before);
        found.push_str(if is_word { stand_in } else { name });
        rest = after;
    }
    found + rest
}

/// Replaces IP addresses and hardware addresses, except the loopback and unspecified ones.
fn without_addresses(text: &str) -> String {
    let is_part = |letter: char| letter.is_ascii_hexdigit() || letter == ':' || letter == '.';
    let mut found = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(is_part) {
        let (before, from) = rest.split_at(at);
        let end = from.find(|letter: char| !is_part(letter)).unwrap_or(from.len());
        let (token, after) = from.split_at(end);
        found.push_str(before);
        let is_part_of_word = found.chars().next_back().is_some_and(char::is_alphanumeric)
            || after.starts_with(char::is_alphanumeric);
        if is_part_of_word {
            found.push_str(token);
        } else {
            push_token(&mut found, token);
        }
        rest = after;
    }
    found + rest
}

/// Appends a run of hexadecimal digits, colons and dots; an address in it is replaced.
fn push_token(found: &mut String, token: &str) {
    let bare = token.trim_matches(['.', ':']);
    // An IPv6 address may begin or end with `::`.
    for candidate in [token, token.trim_end_matches(['.', ':']), bare] {
        let (address, port) = match candidate.parse::<IpAddr>() {
            Ok(_) => (candidate, ""),
            Err(_) => candidate.rsplit_once(':').unwrap_or((candidate, "")),
        };
        let is_told = match address.parse::<IpAddr>() {
            Ok(ip) => {
                !ip.is_loopback()
                    && !ip.is_unspecified()
                    && (ip.is_ipv6() || port.parse::<u16>().is_ok() || port.is_empty())
            }
            Err(_) => is_hardware_address(candidate),
        };
        if is_told {
            let hidden = if is_hardware_address(candidate) { candidate } else { address };
            found.push_str(&token.replacen(hidden, ADDRESS, 1));
            return;
        }
    }
    found.push_str(token);
}

/// `aa:bb:cc:dd:ee:ff` of a network interface, `0123:4567:89ab:cdef` of an RDMA device.
fn is_hardware_address(text: &str) -> bool {
    let groups: Vec<&str> = text.split(':').collect();
    let all = |len: usize| {
        groups.iter().all(|group| group.len() == len && group.bytes().all(|byte| byte.is_ascii_hexdigit()))
    };
    (groups.len() >= 6 && all(2)) || (groups.len() >= 4 && all(4))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn redactor() -> ReportRedactor {
        let text = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        ReportRedactor::new(
            text(&["node7.example.org", "bob@red", "a"]),
            text(&["ann", "root"]),
            text(&["/home/ann", "/root/", "/"]),
        )
    }

    #[test]
    fn names_and_paths_are_left_out() {
        let cleaned = |text: &str| redactor().redact_text(text);
        assert_eq!(cleaned("host node7: no; node7.example.org, node70"), "host <host>: no; <host>, node70");
        assert_eq!(
            cleaned("host bob@red, red: redop, ann banned"),
            "host <host>, <host>: redop, <user> banned"
        );
        assert_eq!(
            cleaned("cannot open /home/ann/secret/x.so: no; '/root/a' /home/anna/b /home/ann"),
            "cannot open <home>: no; '<home>' /home/anna/b <home>"
        );
        for text in ["the root is not one of the ranks", "a: no such host"] {
            assert_eq!(cleaned(text), text);
        }
    }

    #[test]
    fn addresses_are_left_out_and_numbers_stay() {
        let cleaned = |text: &str| redactor().redact_text(text);
        for (text, clean) in [
            ("from 10.1.2.3:4567, 10.1.2.3.", "from <address>:4567, <address>."),
            ("[fe80::1]:99 and fd00::2%eth0", "[<address>]:99 and <address>%eth0"),
            ("at fd00:1::: no", "at <address>: no"),
            ("mac aa:bb:cc:dd:ee:ff guid 0123:4567:89ab:cdef.", "mac <address> guid <address>."),
            ("gid fe80:0000:0000:0000:0000:0000:0000:0001", "gid <address>"),
        ] {
            assert_eq!(cleaned(text), clean);
        }
        for text in [
            "127.0.0.1:99 ::1 0.0.0.0",
            "in 1.25 us, 22.31.1014, 12:30:45",
            "trunkline::messages, proto::wire",
            "0000:3b:00.0 dead beef. a: b",
        ] {
            assert_eq!(cleaned(text), text);
        }
        assert_eq!(ReportRedactor::keeping_names().redact_text("ann@10.1.2.3"), "ann@10.1.2.3");
    }
}
