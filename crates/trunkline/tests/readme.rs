//! Compares the program in README.md with the one in the crate's documentation, which is compiled and run.

#![allow(clippy::unwrap_used, reason = "a panic ends the test")]

#[test]
fn readme_program_matches_the_compiled_one() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let readme = std::fs::read_to_string(folder.join("../../README.md")).unwrap();
    let docs = std::fs::read_to_string(folder.join("src/lib.rs")).unwrap();
    let docs: String = docs
        .lines()
        .map_while(|line| line.strip_prefix("//!"))
        .map(|line| line.strip_prefix(' ').unwrap_or(line).to_owned() + "\n")
        .collect();
    let block = |text: &str, fence: &str| {
        let begin = text.find(fence).unwrap() + fence.len();
        text[begin..].split("```").next().unwrap().to_owned()
    };
    let program = block(&readme, "```rust\n");
    assert!(program.contains("World::start"));
    assert_eq!(program, block(&docs, "```\n"));
}
