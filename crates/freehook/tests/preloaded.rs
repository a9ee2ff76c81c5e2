//! Tests the library as programs use it: preloaded, in front of a stand-in for the CUDA runtime that a C compiler
//! builds here.

#![allow(clippy::unwrap_used, reason = "a test stops at an unexpected error")]

use std::path::{Path, PathBuf};
use std::process::Command;

/// Frees nothing: checks its argument, and that the free is not counted yet.
const RUNTIME: &str = r#"
extern unsigned long trunkline_free_count __attribute__((weak));
static unsigned long frees;
static int is_uncounted(void) { return !&trunkline_free_count || trunkline_free_count == frees++; }
int cudaFree(void *memory) { return memory == (void *)0x1000 && is_uncounted() ? 0 : 1; }
int cudaFreeAsync(void *memory, void *stream)
{
    return memory == (void *)0x1000 && stream == (void *)0x2000 && is_uncounted() ? 700 : 1;
}
"#;

/// Frees twice; prints both statuses and the count.
const FREES: &str = r#"
#include <stdio.h>
int cudaFree(void *memory);
int cudaFreeAsync(void *memory, void *stream);
extern unsigned long trunkline_free_count __attribute__((weak));
int frees(void)
{
    int first = cudaFree((void *)0x1000);
    int second = cudaFreeAsync((void *)0x1000, (void *)0x2000);
    printf("%d %d %lu\n", first, second, &trunkline_free_count ? trunkline_free_count : 0);
    return 0;
}
"#;

/// Linked with the runtime like any program.
const PROGRAM: &str = "int frees(void);\nint main(void) { return frees(); }\n";

/// Opens a plugin that loads the runtime for itself alone. Before that, no runtime is loaded.
const HOST: &str = r#"
#include <dlfcn.h>
#include <stdio.h>
int main(int count, char **arguments)
{
    int (*early)(void *) = (int (*)(void *))dlsym(RTLD_DEFAULT, "cudaFree");
    printf("%d\n", early ? early(0) : -1);
    void *plugin = dlopen(arguments[count - 1], RTLD_NOW | RTLD_LOCAL);
    if (!plugin)
        return 2;
    unsigned long *counted = dlsym(RTLD_DEFAULT, "trunkline_free_count");
    if (counted)
        *counted = 0;
    return ((int (*)(void))dlsym(plugin, "frees"))();
}
"#;

/// Builds the programs with `cc` in a new folder; without a compiler notes a skip and returns `None`.
fn build() -> Option<tempfile::TempDir> {
    if Command::new("cc").arg("--version").output().is_err() {
        skip("no cc");
        return None;
    }
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let compile = |source: &str, name: &str, arguments: &[&str]| {
        let file = at(name).with_extension("c");
        std::fs::write(&file, source).unwrap();
        let mut cc = Command::new("cc");
        cc.args(["-O1", "-Wall", "-o"]).arg(at(name)).arg(&file).arg("-L").arg(folder.path()).args(arguments);
        assert!(cc.status().unwrap().success(), "cc did not compile {name}");
    };
    let runtime = ["-l:libcudart.so.12", "-Wl,-rpath,$ORIGIN"];
    compile(RUNTIME, "libcudart.so.12", &["-shared", "-fPIC", "-Wl,-soname,libcudart.so.12"]);
    compile(FREES, "libplugin.so", &[&["-shared", "-fPIC"][..], &runtime].concat());
    let frees = std::fs::read_to_string(at("libplugin.c")).unwrap();
    compile(&format!("{frees}{PROGRAM}"), "program", &runtime);
    compile(HOST, "host", &["-ldl"]);
    Some(folder)
}

fn skip(reason: &str) {
    use std::io::Write as _;
    println!("SKIPPED freehook: {reason}");
    if let Some(path) = std::env::var_os("TRUNKLINE_SKIP_LOG") {
        let file = std::fs::OpenOptions::new().append(true).create(true).open(path);
        let noted = file.and_then(|mut file| writeln!(file, "freehook: {reason}"));
        assert!(noted.is_ok(), "cannot write to TRUNKLINE_SKIP_LOG: {noted:?}");
    }
}

/// Returns the path of the library, which cargo builds beside its tests.
fn library() -> PathBuf {
    std::env::current_exe().unwrap().with_file_name("libtrunkline_freehook.so")
}

fn run(program: &Path, arguments: &[PathBuf], preloaded: bool) -> String {
    let mut command = Command::new(program);
    command.args(arguments);
    if preloaded {
        command.env("LD_PRELOAD", library());
    }
    let out = command.output().unwrap();
    assert!(out.status.success(), "{out:?}");
    String::from_utf8(out.stdout).unwrap()
}

#[test]
fn each_free_reaches_the_runtime_then_is_counted() {
    let Some(folder) = build() else { return };
    let program = folder.path().join("program");
    assert_eq!(run(&program, &[], false), "0 700 0\n");
    assert_eq!(run(&program, &[], true), "0 700 2\n");
}

#[test]
fn runtime_loaded_by_a_plugin_alone_is_found() {
    let Some(folder) = build() else { return };
    let (host, plugin) = (folder.path().join("host"), folder.path().join("libplugin.so"));
    assert_eq!(run(&host, std::slice::from_ref(&plugin), false), "-1\n0 700 0\n");
    // Without a runtime the first call returns an error and is counted; the program resets the count.
    assert_eq!(run(&host, &[plugin], true), "3\n0 700 2\n");
}
