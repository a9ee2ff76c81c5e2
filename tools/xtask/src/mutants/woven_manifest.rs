//! Cargo's files of the woven tree: manifests and the lock file, extended by the crate that woven code calls.
//!
//! `woven_tree` calls this. Comments of a manifest are lost in the woven tree.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result};
use toml::{Table, Value};

use super::woven_tree::PLANTED;

/// The package that woven code calls.
const PACKAGE: &str = "trunkline-planted";

/// Its manifest.
pub(crate) const PLANTED_MANIFEST: &str = "[package]\nname = \"trunkline-planted\"\n\
     description = \"Reads which planted bug is selected\"\nversion = \"0.0.0\"\nedition = \"2024\"\npublish = false\n";

/// The root manifest: with the crate as a member, and no lint that fails a build.
///
/// # Errors
/// It is not a manifest of a workspace.
pub(crate) fn change_root(text: &str) -> Result<String> {
    let mut manifest: Table = toml::from_str(text)?;
    let workspace = table_at(&mut manifest, "workspace")?;
    let members = workspace.entry("members").or_insert_with(|| Value::Array(Vec::new()));
    let members = members.as_array_mut().context("`members` is no list")?;
    if !members.iter().any(|member| member.as_str() == Some("tools/*")) {
        members.push(PLANTED.into());
    }
    let dependency = Table::from_iter([("path".to_owned(), Value::from(PLANTED))]);
    table_at(workspace, "dependencies")?.insert(PACKAGE.to_owned(), dependency.into());
    // Woven code has unused names, and conditions that never change.
    let lints = Table::from_iter([("warnings".to_owned(), Value::from("allow"))]);
    let lints = Table::from_iter([("rust".to_owned(), Value::from(lints))]);
    workspace.insert("lints".to_owned(), lints.into());
    // Loops of tests evaluate the condition millions of times.
    let mut at = &mut manifest;
    for name in ["profile", "dev", "package", PACKAGE] {
        at = table_at(at, name)?;
    }
    at.insert("opt-level".to_owned(), Value::from(3));
    Ok(toml::to_string(&manifest)?)
}

/// The manifest of a crate with woven code.
///
/// # Errors
/// It is not a manifest.
pub(crate) fn change_member(text: &str) -> Result<String> {
    let mut manifest: Table = toml::from_str(text)?;
    let dependency = Table::from_iter([("workspace".to_owned(), Value::from(true))]);
    table_at(&mut manifest, "dependencies")?.insert(PACKAGE.to_owned(), dependency.into());
    Ok(toml::to_string(&manifest)?)
}

fn table_at<'a>(table: &'a mut Table, name: &str) -> Result<&'a mut Table> {
    let value = table.entry(name).or_insert_with(|| Table::new().into());
    value.as_table_mut().with_context(|| format!("`{name}` is no table"))
}

/// The lock file with the crate and its dependents, as cargo would write it, so that a build needs no registry.
pub(crate) fn change_lock(text: &str, dependents: &BTreeSet<String>) -> String {
    let mut blocks = text.split("[[package]]\n").map(str::trim_end);
    let head = blocks.next().unwrap_or_default();
    let mut packages: Vec<String> = blocks.map(|block| change_package(block, dependents)).collect();
    packages.push(format!("name = \"{PACKAGE}\"\nversion = \"0.0.0\""));
    // Stable: versions of one package keep their order.
    packages.sort_by(|a, b| name_of(a).cmp(name_of(b)));
    let packages: String = packages.iter().map(|package| format!("\n\n[[package]]\n{package}")).collect();
    format!("{head}{packages}\n")
}

fn name_of(package: &str) -> &str {
    package
        .lines()
        .find_map(|line| line.strip_prefix("name = \""))
        .map_or("", |name| name.trim_end_matches('"'))
}

fn change_package(package: &str, dependents: &BTreeSet<String>) -> String {
    if !dependents.contains(name_of(package)) || package.contains("\nsource = ") {
        return package.to_owned();
    }
    let (before, listed) = package.split_once("\ndependencies = [\n").unwrap_or((package, "]"));
    let own = format!(" \"{PACKAGE}\",");
    let mut lines: Vec<&str> = listed.lines().filter(|line| *line != "]").collect();
    lines.push(&own);
    lines.sort_unstable();
    format!("{before}\ndependencies = [\n{}\n]", lines.join("\n"))
}
