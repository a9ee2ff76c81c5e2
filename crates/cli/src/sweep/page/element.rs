//! Elements of HTML, in fewer words. Called by the parts of the page.

use svg::node::element::Element;
use svg::node::{Node, Text, Value};

/// An element that can be built in one expression.
pub(super) trait Build: Node + Sized {
    /// With that attribute.
    fn set(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.assign(name, value);
        self
    }

    /// With that child.
    fn add(mut self, child: impl Into<Box<dyn Node>>) -> Self {
        self.append(child);
        self
    }
}

impl Build for Element {}

/// An element without content. Only those may stay so that HTML knows as empty.
pub(super) fn html(name: &str) -> Element {
    Element::new(name)
}

/// An element of text.
pub(super) fn with(name: &str, text: impl AsRef<str>) -> Element {
    html(name).add(Text::new(clean(text.as_ref())))
}

/// A row of cells.
pub(super) fn row(cells: impl IntoIterator<Item = Element>) -> Element {
    cells.into_iter().fold(html("tr"), Build::add)
}

/// Letters that XML cannot hold become spaces; line ends stay.
fn clean(text: &str) -> String {
    let allowed = |letter: char| letter == '\n' || !(letter.is_control() || letter as u32 & 0xfffe == 0xfffe);
    text.chars().map(|letter| if allowed(letter) { letter } else { ' ' }).collect()
}
