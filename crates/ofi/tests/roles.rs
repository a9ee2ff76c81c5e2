//! What the types forbid does not compile: each file of `roles/` is one mistake, and what the compiler says of it stands beside
//! it.

#[test]
fn mistakes_do_not_compile() {
    let cases = trybuild::TestCases::new();
    cases.pass("tests/roles/right.rs");
    cases.compile_fail("tests/roles/wrong_*.rs");
}
