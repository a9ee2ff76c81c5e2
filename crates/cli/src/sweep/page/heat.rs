//! The map: bus bandwidth of each configuration relative to the first, by collective.

use svg::node::element::Element;

use super::element::{Build as _, html, row, with};
use super::heads;
use crate::sweep::Plan;
use crate::sweep::results::{Cell, Results, Spread};

/// A ratio that is this far from 1, or farther, has the full colour.
const FULL: f64 = 2.0;

/// The table, and what it means.
pub(super) fn section(plan: &Plan, results: &Results) -> Element {
    let first = plan.configurations.first().map_or_else(String::new, ToString::to_string);
    let told = format!(
        "Bus bandwidth relative to {first}: the geometric mean over all sizes, the median of the rounds, and below \
         it the smallest and the largest of them. Each round is compared with the same round of {first}; the column \
         of {first} itself shows how far its rounds are from their median. A cell has a colour if all its rounds are on \
         one side of 1: blue for faster, orange for slower."
    );
    let body = results.collectives().map(|cells| {
        let name = cells.first().map_or("", |cell| cell.collective.name());
        let ratios = cells.iter().map(|one| cell(one, one.beside(&cells[0])));
        row(std::iter::once(with("th", name).set("scope", "row")).chain(ratios))
    });
    let table = body.fold(html("table").set("class", "heat").add(heads(plan)), |table, line| table.add(line));
    let table = if results.collectives().count() > 1 { table.add(means(plan, results)) } else { table };
    html("section")
        .add(with("h2", format!("Bus bandwidth relative to {first}")))
        .add(with("p", told))
        .add(html("div").set("class", "wide").add(table))
}

fn cell(one: &Cell, ratio: Spread) -> Element {
    let tip = format!("{}, {}", one.collective, one.configuration.words());
    let spread = with("small", format!("{:.2}\u{2013}{:.2}", ratio.low, ratio.high));
    let value = with("b", format!("{:.2}", ratio.median));
    let told = ratio.low > 1.0 || ratio.high < 1.0;
    let colour = shade(if told { ratio.median } else { 1.0 });
    html("td").set("style", colour).set("title", tip).add(value).add(spread)
}

/// The geometric mean of each column.
fn means(plan: &Plan, results: &Results) -> Element {
    let mean = |at: usize| {
        let logs = results.collectives().map(|cells| cells[at].beside(&cells[0]).median.ln());
        let (sum, count) = logs.fold((0.0, 0.0), |(sum, count), log| (sum + log, count + 1.0));
        let ratio: f64 = (sum / count).exp();
        html("td").add(with("b", format!("{ratio:.2}")))
    };
    let head = with("th", "all").set("scope", "row");
    row(std::iter::once(head).chain((0..plan.configurations.len()).map(mean))).set("class", "mean")
}

/// Blue for faster, orange for slower; nothing at 1. Transparent, so that it does for light and dark.
fn shade(ratio: f64) -> String {
    let strength = (ratio.log2() / FULL.log2()).clamp(-1.0, 1.0) * 0.6;
    let strength = if strength.is_finite() { strength } else { 0.0 };
    let colour = if strength > 0.0 { "0,114,178" } else { "230,120,0" };
    format!("background:rgba({colour},{:.2})", strength.abs())
}

#[cfg(test)]
mod tests {
    use super::shade;

    #[test]
    fn colours_tell_faster_from_slower() {
        assert_eq!(shade(2.0), "background:rgba(0,114,178,0.60)");
        assert_eq!(shade(9.0), shade(2.0));
        assert_eq!(shade(0.5), "background:rgba(230,120,0,0.60)");
        assert_eq!(shade(1.0), "background:rgba(230,120,0,0.00)");
        assert_eq!(shade(f64::NAN), shade(1.0), "nothing was measured");
    }
}
