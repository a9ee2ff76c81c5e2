//! Rust sources as syntax trees, with test code separated from the product.
//!
//! `layers`, `limits`, `settings` and others read files through this. It parses and judges nothing.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use proc_macro2::{TokenStream, TokenTree};
use syn::spanned::Spanned as _;
use syn::visit_mut::{self, VisitMut};
use walkdir::WalkDir;

/// One parsed file.
pub(crate) struct SourceFile {
    /// Absolute path.
    pub(crate) path: PathBuf,
    /// The whole text.
    pub(crate) text: String,
    /// The tree without `#[cfg(test)]` items.
    pub(crate) product: syn::File,
    /// Lines taken by `#[cfg(test)]` items, 1-based.
    pub(crate) test_lines: Vec<RangeInclusive<usize>>,
    /// Modules declared as `#[cfg(test)] mod name;`, which live in files of their own.
    test_modules: Vec<String>,
}

impl SourceFile {
    /// Parses one file.
    ///
    /// # Errors
    /// It cannot be read, or is not Rust.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
        let mut product = syn::parse_file(&text).with_context(|| format!("parsing {}", path.display()))?;
        let mut strip = StripTests::default();
        strip.visit_file_mut(&mut product);
        Ok(Self {
            path: path.to_owned(),
            text,
            product,
            test_lines: strip.lines,
            test_modules: strip.modules,
        })
    }

    /// Lines of the file that are not test code.
    pub(crate) fn product_lines(&self) -> usize {
        let tests: usize = self.test_lines.iter().map(|r| r.end() - r.start() + 1).sum();
        self.text.lines().count().saturating_sub(tests)
    }

    /// Whether it belongs to the fuzz targets of the crate in this folder.
    pub(crate) fn is_fuzzing(&self, package: &Path) -> bool {
        let inside = self.path.strip_prefix(package).unwrap_or(&self.path);
        inside.iter().any(|part| part.to_string_lossy().starts_with("fuzzing"))
    }

    /// The folder in which this file's child modules live.
    fn module_dir(&self) -> PathBuf {
        let dir = self.path.parent().unwrap_or(Path::new(""));
        match self.path.file_stem().and_then(|s| s.to_str()) {
            Some("mod" | "lib" | "main") | None => dir.to_owned(),
            Some(stem) => dir.join(stem),
        }
    }
}

/// The product sources of a crate: `src/` and `build.rs`, without test files.
///
/// # Errors
/// As [`SourceFile::read`].
pub(crate) fn product_sources(dir: &Path) -> Result<Vec<SourceFile>> {
    let mut sources = Vec::new();
    for path in rust_files(&dir.join("src")).into_iter().chain(Some(dir.join("build.rs"))) {
        if path.is_file() && !is_test_path(path.strip_prefix(dir).unwrap_or(&path)) {
            sources.push(SourceFile::read(&path)?);
        }
    }
    let hidden: Vec<PathBuf> =
        sources.iter().flat_map(|s| s.test_modules.iter().map(|m| s.module_dir().join(m))).collect();
    sources.retain(|s| !hidden.iter().any(|h| s.path == h.with_extension("rs") || s.path.starts_with(h)));
    Ok(sources)
}

/// Every token of a stream, groups opened up.
pub(crate) fn flat_tokens(stream: TokenStream, out: &mut Vec<TokenTree>) {
    for tree in stream {
        if let TokenTree::Group(group) = tree {
            flat_tokens(group.stream(), out);
        } else {
            out.push(tree);
        }
    }
}

/// Whether `::` stands between the token at `at` and the one three places before.
pub(crate) fn follows_colons(tokens: &[TokenTree], at: usize) -> bool {
    let before = at.checked_sub(2).and_then(|from| tokens.get(from..at)).unwrap_or_default();
    let is_colon = |tree: &TokenTree| matches!(tree, TokenTree::Punct(sign) if sign.as_char() == ':');
    before.len() == 2 && before.iter().all(is_colon)
}

fn rust_files(dir: &Path) -> Vec<PathBuf> {
    let walk = WalkDir::new(dir).sort_by_file_name().into_iter().filter_map(std::result::Result::ok);
    walk.map(walkdir::DirEntry::into_path).filter(|p| p.extension().is_some_and(|e| e == "rs")).collect()
}

/// `tests.rs`, `foo_tests.rs`, and anything below a folder `tests/`, `benches/`, `examples/`.
fn is_test_path(relative: &Path) -> bool {
    let is_folder = |part: &std::ffi::OsStr| ["tests", "benches", "examples"].iter().any(|n| part == *n);
    let in_folder = relative.parent().is_some_and(|p| p.iter().any(is_folder));
    let name = relative.file_stem().and_then(|s| s.to_str()).unwrap_or_default();
    in_folder || name == "tests" || name.ends_with("_tests")
}

/// Removes test items and records their lines.
#[derive(Default)]
struct StripTests {
    lines: Vec<RangeInclusive<usize>>,
    modules: Vec<String>,
}

impl StripTests {
    fn keep_product(&mut self, item: &syn::Item) -> bool {
        if !attributes_of(item).iter().any(is_cfg_test) {
            return true;
        }
        if let syn::Item::Mod(module) = item
            && module.content.is_none()
        {
            self.modules.push(module.ident.to_string());
        }
        let span = item.span();
        self.lines.push(span.start().line..=span.end().line);
        false
    }
}

impl VisitMut for StripTests {
    fn visit_file_mut(&mut self, file: &mut syn::File) {
        file.items.retain(|item| self.keep_product(item));
        visit_mut::visit_file_mut(self, file);
    }

    fn visit_item_mod_mut(&mut self, module: &mut syn::ItemMod) {
        if let Some((_, items)) = &mut module.content {
            items.retain(|item| self.keep_product(item));
        }
        visit_mut::visit_item_mod_mut(self, module);
    }

    fn visit_item_impl_mut(&mut self, block: &mut syn::ItemImpl) {
        block.items.retain(|item| match item {
            syn::ImplItem::Fn(method) => !method.attrs.iter().any(is_cfg_test),
            syn::ImplItem::Const(constant) => !constant.attrs.iter().any(is_cfg_test),
            _ => true,
        });
        visit_mut::visit_item_impl_mut(self, block);
    }
}

fn attributes_of(item: &syn::Item) -> &[syn::Attribute] {
    match item {
        syn::Item::Mod(i) => &i.attrs,
        syn::Item::Fn(i) => &i.attrs,
        syn::Item::Impl(i) => &i.attrs,
        syn::Item::Use(i) => &i.attrs,
        syn::Item::Struct(i) => &i.attrs,
        syn::Item::Enum(i) => &i.attrs,
        syn::Item::Static(i) => &i.attrs,
        syn::Item::Const(i) => &i.attrs,
        syn::Item::Macro(i) => &i.attrs,
        syn::Item::Type(i) => &i.attrs,
        syn::Item::Trait(i) => &i.attrs,
        syn::Item::ExternCrate(i) => &i.attrs,
        _ => &[],
    }
}

/// `#[cfg(test)]` and `#[cfg(all(test, ...))]`. Not `any(test, ...)`: that can be product.
fn is_cfg_test(attribute: &syn::Attribute) -> bool {
    let syn::Meta::List(list) = &attribute.meta else { return false };
    if !list.path.is_ident("cfg") {
        return false;
    }
    let text: String = list.tokens.to_string().split_whitespace().collect();
    text == "test" || text.starts_with("all(test,") || (text.starts_with("all(") && text.ends_with(",test)"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_code_is_separated_from_the_product() {
        let dir = tempfile::tempdir().unwrap();
        let src = dir.path().join("src");
        std::fs::create_dir_all(&src).unwrap();
        std::fs::write(
            src.join("lib.rs"),
            "fn a() {}\n#[cfg(test)]\nmod harness;\n#[cfg(test)]\nmod tests {\n fn b() {}\n}\n",
        )
        .unwrap();
        std::fs::write(src.join("harness.rs"), "fn c() {}\n").unwrap();
        std::fs::write(src.join("tests.rs"), "fn d() {}\n").unwrap();
        let sources = product_sources(dir.path()).unwrap();
        assert_eq!(sources.len(), 1);
        assert_eq!(sources[0].product.items.len(), 1);
        assert_eq!(sources[0].product_lines(), 1);
    }

    #[test]
    fn only_pure_test_conditions_count() {
        let is_test = |text: &str| {
            let item: syn::ItemFn = syn::parse_str(text).unwrap();
            is_cfg_test(&item.attrs[0])
        };
        assert!(is_test("#[cfg(test)] fn f() {}"));
        assert!(is_test("#[cfg(all(test, unix))] fn f() {}"));
        assert!(!is_test("#[cfg(any(test, feature = \"x\"))] fn f() {}"));
        assert!(!is_test("#[cfg(not(test))] fn f() {}"));
    }
}
