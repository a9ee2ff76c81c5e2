//! Each figure of `names`, shown on small crates.

use super::*;
use crate::fixture::Fixture;

fn figure_of(figure: NameFigure, lib: &str) -> u64 {
    let fixture = Fixture::new();
    fixture.with("engine", &[], lib);
    figures(&fixture)["engine"][figure.figure_name()]
}

fn figures(fixture: &Fixture) -> WorkspaceFigures {
    count_names(&fixture.load()).unwrap().crate_figures()
}

#[test]
fn words_that_add_nothing_do_not_count() {
    for name in ["Place", "PlaceInfo", "StateData", "State", "poll", "seat_data", "_seat", "Rdma4"] {
        assert_eq!(words_of(name), 1, "{name}");
    }
    for name in ["GroupSeat", "RegionOffset", "post_fin", "Mlx5Queue", "state_machine_of"] {
        assert_eq!(words_of(name), 2, "{name}");
    }
}

#[test]
fn types_and_functions_of_one_word_are_counted() {
    let lib = "struct Place; struct GroupSeat; enum Kind {} trait Port {} type Alias = u8;
        fn weigh() {} fn weigh_load() {} fn len() {} extern \"C\" fn put() {}
        impl Place { fn new() {} fn turn(&self) {} fn take_turn(&self) {} }
        trait Named { fn ask(&self); }
        impl Named for Place { fn ask(&self) {} }
        #[cfg(test)] mod tests { struct Other; fn go() {} }";
    assert_eq!(figure_of(NameFigure::OneWordTypes, lib), 5);
    assert_eq!(figure_of(NameFigure::OneWordFunctions, lib), 3);
}

#[test]
fn namesakes_are_counted_but_for_the_same_role_of_two_fabrics() {
    let fixture = Fixture::new();
    fixture.with("engine", &[], "struct Place; mod a { struct Other; } mod b { struct Other; }");
    fixture.with("shmem", &[], "struct Place; struct RailEnd;");
    fixture.with("ofi", &[], "").write("crates/ofi/src/rail.rs", "struct RailEnd; struct Place;");
    fixture.with("verbs", &[], "").write("crates/verbs/src/rail.rs", "struct RailPath;");
    fixture.with("softnic", &[], "").write("crates/softnic/src/rail.rs", "struct RailPath;");
    let figures = figures(&fixture);
    let shared = |package: &str| figures[package][NameFigure::SharedTypes.figure_name()];
    assert_eq!(["engine", "shmem", "ofi", "verbs", "softnic"].map(shared), [3, 2, 2, 0, 0]);
}

#[test]
fn tuples_in_arguments_and_lets_are_counted() {
    let lib = "fn f((a, b): (u8, u8), c: u8, d: (), e: &(u8, u8)) { let (x, y) = (a, b); let (p, q) = f(); let z = (x, y); }";
    assert_eq!(figure_of(NameFigure::TupleArguments, lib), 1);
    assert_eq!(figure_of(NameFigure::TupleLets, lib), 1);
}

#[test]
fn visible_fields_beyond_a_number_are_counted() {
    let fields = |count: usize| (0..count).map(|n| format!("pub(crate) f{n}: u8, ")).collect::<String>();
    let lib = |count| format!("struct Wide {{ {} own: u8 }}", fields(count));
    assert_eq!(figure_of(NameFigure::VisibleFields, &lib(12)), 0);
    assert_eq!(figure_of(NameFigure::VisibleFields, &lib(15)), 3);
}

#[test]
fn files_with_methods_of_a_type_beyond_a_number_are_counted() {
    let fixture = Fixture::new();
    fixture.with("engine", &[], "struct Engine; impl Engine {} impl Clone for Engine {}");
    for file in ["a", "b", "c", "d", "e"] {
        fixture.write(&format!("crates/engine/src/{file}.rs"), "impl Engine {} impl Engine {}");
    }
    assert_eq!(figures(&fixture)["engine"][NameFigure::ScatteredTypes.figure_name()], 2);
}

#[test]
fn predicates_that_act_are_counted() {
    let lib = "impl LinkEnd { fn is_up(&self) {} fn is_revoked(&mut self) {} fn revoke(&mut self) {} fn has_room(self) {} }";
    assert_eq!(figure_of(NameFigure::ActingPredicates, lib), 1);
}

#[test]
fn imports_that_rename_our_types_are_counted() {
    let lib = "use crate::dial::{Word as Say, Heap}; use trunkline_proto::status::Status as Page; use std::fmt::Result as Fmt;
        use super::net as nets; use crate::Host as _;";
    assert_eq!(figure_of(NameFigure::RenamingImports, lib), 2);
}

#[test]
fn a_risen_figure_fails_the_check() {
    let fixture = Fixture::new();
    fixture.with("engine", &[], "struct Place;");
    assert!(run(&fixture.load(), None, false).unwrap().mentions("has no figures"));
    fixture.write("tools/xtask/.keep", "");
    run(&fixture.load(), None, true).unwrap();
    assert!(run(&fixture.load(), None, false).unwrap().is_clean());
    fixture.with("engine", &[], "struct Place; struct Turn;");
    assert!(run(&fixture.load(), None, false).unwrap().mentions("one_word_types rose from 1 to 2"));
    assert!(run(&fixture.load(), None, true).is_err());
}
