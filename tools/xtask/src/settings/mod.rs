//! `cargo xtask settings`: compares docs/settings.md with the registry in crates/settings, and checks that the registry contains
//! each setting that the product reads or names.
//!
//! Called by developers and by `ci`. It works on syntax trees of `crates/*/src`; test code is exempt. With `--update` it writes
//! the page. tools/xtask/settings.toml has the exceptions.

mod allow_list;
mod environment_read;
mod page;
mod row_constant;
mod setting_word;

use std::path::Path;

use anyhow::{Context as _, Result};

use crate::report::CheckFindings;
use crate::source::{self, SourceFile};
use crate::workspace::Workspace;

use allow_list::SettingsAllowList;
use row_constant::RowConstant;

/// The generated page, relative to the root.
const PAGE: &str = "docs/settings.md";
/// The folder of the product's crates.
const PRODUCT: &str = "crates";
/// The crate that contains the registry, without prefix.
const REGISTRY: &str = "settings";

/// A product source, and its path relative to the root.
struct ProductSource {
    file: String,
    package: String,
    source: SourceFile,
}

/// Compares page and sources with the registry; with `update` writes the page first.
///
/// # Errors
/// The page, a source or the list of exceptions cannot be read or written.
pub(crate) fn check_settings(workspace: &Workspace, update: bool) -> Result<CheckFindings> {
    let mut findings = CheckFindings::default();
    compare_page(&workspace.root, update, &mut findings)?;
    let sources = read_sources(workspace)?;
    let mut allowed = SettingsAllowList::read_list(&workspace.root)?;
    for product in &sources {
        check_reads(product, &mut allowed, &mut findings);
        check_words(product, &mut allowed, &mut findings);
    }
    check_constants(workspace, &sources, &mut allowed, &mut findings)?;
    allowed.report_entries(&mut findings);
    Ok(findings)
}

fn compare_page(root: &Path, update: bool, findings: &mut CheckFindings) -> Result<()> {
    let path = root.join(PAGE);
    let rendered = page::render_page();
    if update {
        std::fs::write(&path, &rendered).with_context(|| format!("writing {PAGE}"))?;
        findings.add_note(format!("{PAGE} is up to date"));
        return Ok(());
    }
    let present = if path.exists() {
        std::fs::read_to_string(&path).with_context(|| format!("reading {PAGE}"))?
    } else {
        String::new()
    };
    if present != rendered {
        let same =
            present.lines().zip(rendered.lines()).take_while(|(present, rendered)| present == rendered);
        findings.add_finding(
            format!("{PAGE}:{}", same.count() + 1),
            "differs from the registry in crates/settings; run `cargo xtask settings --update`",
        );
    }
    Ok(())
}

/// Reads the product sources of the shipped crates, without fuzz targets and build scripts, which read cargo's variables.
fn read_sources(workspace: &Workspace) -> Result<Vec<ProductSource>> {
    let product = workspace.root.join(PRODUCT);
    let mut sources = Vec::new();
    for package in workspace.crates.iter().filter(|package| package.dir.starts_with(&product)) {
        for source in source::product_sources(&package.dir)? {
            if source.path.starts_with(package.dir.join("src")) && !source.is_fuzzing(&package.dir) {
                let file = workspace.relative_path(&source.path);
                sources.push(ProductSource { file, package: package.name.clone(), source });
            }
        }
    }
    Ok(sources)
}

/// Finds code that reads the environment beside the registry.
fn check_reads(product: &ProductSource, allowed: &mut SettingsAllowList, findings: &mut CheckFindings) {
    for read in environment_read::find_reads(&product.source.product) {
        if !allowed.permit_read(&product.file, &read.item) {
            findings.add_finding(
                format!("{}:{}", product.file, read.line),
                format!(
                    "{} reads the environment by {}; read a row of crates/settings by SettingValues, or give a \
                     reason in tools/xtask/settings.toml",
                    read.item, read.call
                ),
            );
        }
    }
}

/// Finds names in texts that begin as settings do and that the registry does not contain.
fn check_words(product: &ProductSource, allowed: &mut SettingsAllowList, findings: &mut CheckFindings) {
    for word in setting_word::find_words(&product.source.product) {
        if !setting_word::is_known(&word.name) && !allowed.permit_word(&word.name) {
            findings.add_finding(
                format!("{}:{}", product.file, word.line),
                format!(
                    "{} is no setting of the registry; correct it, add a row to crates/settings/src/rows, or give a \
                     reason in tools/xtask/settings.toml",
                    word.name
                ),
            );
        }
    }
}

/// Finds rows that no product source reads.
fn check_constants(
    workspace: &Workspace,
    sources: &[ProductSource],
    allowed: &mut SettingsAllowList,
    findings: &mut CheckFindings,
) -> Result<()> {
    let (registry, readers): (Vec<_>, Vec<_>) =
        sources.iter().partition(|product| product.package == REGISTRY);
    let rows: Vec<RowConstant> =
        registry.into_iter().flat_map(|product| row_constant::read_rows(&product.source)).collect();
    let paths = row_constant::collect_paths(readers.into_iter().map(|product| &product.source.product));
    for row in rows.iter().filter(|row| !row.is_named_in(&paths)) {
        if !allowed.permit_row(&workspace.root, row)? {
            findings.add_finding(
                row.full_path(),
                format!(
                    "no product source reads {} by this constant; read it in a front end's `from_settings`, remove \
                     the row, or name its readers in tools/xtask/settings.toml",
                    row.name
                ),
            );
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
