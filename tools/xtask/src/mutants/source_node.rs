//! Classifies the syntax node of an anchor: an expression, statements, match arms, or tokens of a macro.
//!
//! `woven_source` calls this once per file, with all anchors. It decides whether the node can be replaced at run time,
//! and writes nothing.

use std::ops::Range;

use proc_macro2::Span;
use syn::punctuated::Punctuated;
use syn::spanned::Spanned as _;
use syn::visit::{self, Visit};

use super::source_token::{SourceToken, tokens_within};

/// The syntax that an anchor covers in its file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum AnchorNode {
    /// One expression, and its place in the node around it.
    Expression {
        /// Its bytes.
        bytes: Range<usize>,
        /// How a replacement is written there.
        slot: ExpressionSlot,
    },
    /// Whole statements of a block.
    Statements {
        /// Their bytes, the last semicolon included.
        bytes: Range<usize>,
        /// The code behind them.
        end: StatementsEnd,
        /// Why they cannot be put into a block of their own, if so.
        lost: Option<String>,
    },
    /// Whole arms of one match.
    Arms {
        /// Their bytes.
        bytes: Range<usize>,
        /// Each of them.
        arms: Vec<ArmParts>,
    },
    /// Tokens of a macro that are not its arguments, or whose arguments are not expressions.
    MacroTokens {
        /// The tokens.
        tokens: Range<usize>,
        /// Whether they are in a macro's definition, where `$name` is allowed.
        is_definition: bool,
    },
    /// None of these; why, and the remedy.
    Refused(String),
}

/// How an expression may be replaced in its place.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum ExpressionSlot {
    /// In parentheses.
    #[default]
    Free,
    /// As a block: after `else`, as the body of an arm, or of a closure with a declared type.
    Block,
    /// As the value of this field, which the source leaves out.
    Shorthand(String),
    /// Not at all: it is assigned to, and a copy would be assigned instead.
    Written,
}

/// The code behind statements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StatementsEnd {
    /// Other statements, or they end in a semicolon.
    Plain,
    /// None: the last statement is the value of the block.
    Value,
    /// None: the last statement has no semicolon and never a value (a loop, an `if` without `else`).
    Unit,
}

/// Where guards of an arm are written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ArmParts {
    /// The end of its pattern.
    pub(crate) pattern_end: usize,
    /// Its guard, without `if`.
    pub(crate) guard: Option<Range<usize>>,
    /// Its body.
    pub(crate) body: Range<usize>,
}

const REMEDY: &str = "anchor a whole expression, whole statements or a match arm inside a function";

/// An anchor whose node is to be found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WantedAnchor {
    /// Its tokens.
    pub(crate) tokens: Range<usize>,
    /// Whether the innermost statement or arm that contains the anchor is meant, rather than a node of exactly these
    /// tokens.
    pub(crate) may_be_part: bool,
}

impl WantedAnchor {
    fn is_inside(&self, tokens: &Range<usize>) -> bool {
        tokens.start <= self.tokens.start && self.tokens.end <= tokens.end
    }

    /// The adjacent nodes that an anchor covers. The separator after the last one may be left out.
    fn find_covered(
        &self,
        nodes: &[Range<usize>],
        is_separator: impl Fn(usize) -> bool,
    ) -> Option<Range<usize>> {
        let Range { start, end } = self.tokens;
        if self.may_be_part {
            let first = nodes.iter().position(|node| node.contains(&start))?;
            let last = nodes.iter().position(|node| node.contains(&(end - 1)))?;
            return Some(first..last + 1);
        }
        let first = nodes.iter().position(|node| node.start == start)?;
        let last =
            nodes.iter().position(|node| node.end == end || node.end == end + 1 && is_separator(end))?;
        (first <= last).then_some(first..last + 1)
    }
}

/// Finds the node of each anchor.
pub(crate) fn find_nodes(
    file: &syn::File,
    tokens: &[SourceToken],
    anchors: &[WantedAnchor],
) -> Vec<AnchorNode> {
    let wanted = anchors.iter().map(|anchor| WantedNode { anchor: anchor.clone(), found: None }).collect();
    let mut finder =
        NodeFinder { source: tokens, wanted, slot: ExpressionSlot::Free, context: CodeContext::Outside };
    finder.visit_file(file);
    let refused = || AnchorNode::Refused(format!("the anchor is no whole node of the program: {REMEDY}"));
    finder.wanted.into_iter().map(|wanted| wanted.found.unwrap_or_else(refused)).collect()
}

struct WantedNode {
    anchor: WantedAnchor,
    found: Option<AnchorNode>,
}

impl WantedNode {
    /// Whether the search continues: for a part, an inner node replaces an outer one.
    fn is_open(&self) -> bool {
        self.found.is_none() || self.anchor.may_be_part
    }
}

/// Whether code runs at run time.
#[derive(Debug, Clone, PartialEq, Eq)]
enum CodeContext {
    /// No code: signatures, types, constants.
    Outside,
    /// Code that runs.
    Runtime,
    /// Code that the compiler may evaluate, and the name of its item.
    Constant(String),
}

struct NodeFinder<'a> {
    source: &'a [SourceToken],
    wanted: Vec<WantedNode>,
    /// The place of the expression that is visited next.
    slot: ExpressionSlot,
    context: CodeContext,
}

impl NodeFinder<'_> {
    /// The tokens of a node, if an anchor is in it: other nodes need no visit.
    fn tokens_if_wanted(&self, span: Span) -> Option<Range<usize>> {
        let tokens = tokens_within(self.source, &span.byte_range());
        let is_inside = |wanted: &WantedNode| wanted.is_open() && wanted.anchor.is_inside(&tokens);
        self.wanted.iter().any(is_inside).then_some(tokens)
    }

    /// Records the node for each anchor of exactly these tokens.
    fn settle_exact(&mut self, tokens: &Range<usize>, node: &AnchorNode) {
        let node = self.check_context(node);
        for wanted in &mut self.wanted {
            if wanted.found.is_none() && wanted.anchor.tokens == *tokens && !wanted.anchor.may_be_part {
                wanted.found = Some(node.clone());
            }
        }
    }

    /// The node, or a refusal if its code cannot select a bug at run time.
    fn check_context(&self, node: &AnchorNode) -> AnchorNode {
        match &self.context {
            CodeContext::Runtime => node.clone(),
            CodeContext::Outside => {
                AnchorNode::Refused(format!("the anchor is in a constant or a type: {REMEDY} that runs"))
            }
            CodeContext::Constant(name) => refuse_constant(name),
        }
    }

    fn visit_in(&mut self, context: CodeContext, visit: impl FnOnce(&mut Self)) {
        let outer = std::mem::replace(&mut self.context, context);
        visit(self);
        self.context = outer;
    }

    fn visit_body(&mut self, signature: &syn::Signature, body: &syn::Block) {
        let context = match signature.constness {
            Some(_) => CodeContext::Constant(format!("fn {}", signature.ident)),
            None => CodeContext::Runtime,
        };
        self.visit_in(context, |finder| finder.visit_block(body));
    }

    fn visit_slot(&mut self, expression: &syn::Expr, slot: ExpressionSlot) {
        self.slot = slot;
        self.visit_expr(expression);
        self.slot = ExpressionSlot::Free;
    }

    fn settle_statements(&mut self, block: &[syn::Stmt]) {
        let spans: Vec<Span> = block.iter().map(|statement| statement.span()).collect();
        let tokens: Vec<_> =
            spans.iter().map(|span| tokens_within(self.source, &span.byte_range())).collect();
        let source = self.source;
        let is_semicolon = |at: usize| source.get(at).is_some_and(|token| token.text == ";");
        for at in 0..self.wanted.len() {
            let wanted = &self.wanted[at];
            let covered =
                if wanted.is_open() { wanted.anchor.find_covered(&tokens, is_semicolon) } else { None };
            let Some(Range { start: first, end }) = covered else { continue };
            let last = end - 1;
            let bytes = spans[first].byte_range().start..spans[last].byte_range().end;
            let ends_block = last + 1 == block.len();
            let lost = name_lost(&block[first..=last], ends_block);
            let node = AnchorNode::Statements { bytes, end: statements_end(&block[last], ends_block), lost };
            self.wanted[at].found = Some(self.check_context(&node));
        }
    }

    fn settle_arms(&mut self, arms: &[syn::Arm]) {
        let spans: Vec<Range<usize>> = arms.iter().map(|arm| arm.span().byte_range()).collect();
        let tokens: Vec<_> = spans.iter().map(|bytes| tokens_within(self.source, bytes)).collect();
        let source = self.source;
        let is_comma = |at: usize| source.get(at).is_some_and(|token| token.text == ",");
        for at in 0..self.wanted.len() {
            let wanted = &self.wanted[at];
            let covered = if wanted.is_open() { wanted.anchor.find_covered(&tokens, is_comma) } else { None };
            let Some(Range { start: first, end }) = covered else { continue };
            let last = end - 1;
            let bytes = spans[first].start..spans[last].end;
            let node =
                AnchorNode::Arms { bytes, arms: arms[first..=last].iter().map(parts_of_arm).collect() };
            self.wanted[at].found = Some(self.check_context(&node));
        }
    }

    /// Anchors in a macro's tokens: its arguments, if they are expressions, else the tokens themselves.
    fn settle_macro(&mut self, of: &syn::Macro, is_definition: bool) {
        let Some(first) = of.tokens.clone().into_iter().next() else { return };
        let mut span = first.span();
        if let Some(last) = of.tokens.clone().into_iter().last() {
            span = span.join(last.span()).unwrap_or(span);
        }
        let Some(tokens) = self.tokens_if_wanted(span) else { return };
        let parse = Punctuated::<syn::Expr, syn::Token![,]>::parse_terminated;
        let is_matches =
            of.path.segments.last().is_some_and(|name| name.ident.to_string().ends_with("matches"));
        if !is_definition
            && !is_matches
            && let Ok(arguments) = syn::parse::Parser::parse2(parse, of.tokens.clone())
        {
            arguments.iter().for_each(|argument| self.visit_macro_argument(argument));
            return;
        }
        let refused = match &self.context {
            CodeContext::Constant(name) => Some(refuse_constant(name)),
            _ => None,
        };
        for wanted in &mut self.wanted {
            if wanted.found.is_none() && wanted.anchor.is_inside(&tokens) {
                let node = AnchorNode::MacroTokens { tokens: wanted.anchor.tokens.clone(), is_definition };
                wanted.found = Some(refused.clone().unwrap_or(node));
            }
        }
    }

    /// Visits one argument. In `name = value` the name is not a name of the program.
    fn visit_macro_argument(&mut self, argument: &syn::Expr) {
        match argument {
            syn::Expr::Assign(named) if matches!(*named.left, syn::Expr::Path(_)) => {
                self.visit_expr(&named.right)
            }
            other => self.visit_expr(other),
        }
    }
}

impl<'ast> Visit<'ast> for NodeFinder<'_> {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        if self.tokens_if_wanted(item.span()).is_some() {
            self.visit_in(CodeContext::Outside, |finder| visit::visit_item(finder, item));
        }
    }

    fn visit_impl_item(&mut self, item: &'ast syn::ImplItem) {
        if self.tokens_if_wanted(item.span()).is_some() {
            visit::visit_impl_item(self, item);
        }
    }

    fn visit_trait_item(&mut self, item: &'ast syn::TraitItem) {
        if self.tokens_if_wanted(item.span()).is_some() {
            visit::visit_trait_item(self, item);
        }
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.visit_body(&item.sig, &item.block);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.visit_body(&item.sig, &item.block);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        if let Some(body) = &item.default {
            self.visit_body(&item.sig, body);
        }
    }

    fn visit_item_macro(&mut self, item: &'ast syn::ItemMacro) {
        self.settle_macro(&item.mac, item.mac.path.is_ident("macro_rules"));
    }

    fn visit_macro(&mut self, of: &'ast syn::Macro) {
        self.settle_macro(of, false);
    }

    fn visit_block(&mut self, block: &'ast syn::Block) {
        let span = block.brace_token.span.join();
        if let Some(tokens) = self.tokens_if_wanted(span) {
            let node = AnchorNode::Expression { bytes: span.byte_range(), slot: ExpressionSlot::Block };
            self.settle_exact(&tokens, &node);
            self.settle_statements(&block.stmts);
            visit::visit_block(self, block);
        }
    }

    fn visit_stmt(&mut self, statement: &'ast syn::Stmt) {
        if self.tokens_if_wanted(statement.span()).is_some() {
            visit::visit_stmt(self, statement);
        }
    }

    fn visit_expr(&mut self, expression: &'ast syn::Expr) {
        let slot = std::mem::take(&mut self.slot);
        let span = expression.span();
        let Some(tokens) = self.tokens_if_wanted(span) else { return };
        let node = match expression {
            _ if has_let(expression) => AnchorNode::Refused(
                "the anchor binds names by `let` in a condition: anchor the expression behind its `=` instead".to_owned(),
            ),
            _ if slot == ExpressionSlot::Written && is_place(expression) => AnchorNode::Refused(
                "the anchor is written to, and a copy would be written instead: anchor the whole statement".to_owned(),
            ),
            _ => AnchorNode::Expression { bytes: span.byte_range(), slot: slot.clone() },
        };
        self.settle_exact(&tokens, &node);
        // A part of a place is assigned to together with the place.
        match expression {
            syn::Expr::Field(field) if slot == ExpressionSlot::Written => self.visit_slot(&field.base, slot),
            syn::Expr::Paren(inner) if slot == ExpressionSlot::Written => self.visit_slot(&inner.expr, slot),
            syn::Expr::Index(index) if slot == ExpressionSlot::Written => {
                self.visit_slot(&index.expr, slot);
                self.visit_expr(&index.index);
            }
            _ => visit::visit_expr(self, expression),
        }
    }

    fn visit_arm(&mut self, arm: &'ast syn::Arm) {
        if let Some((_, guard)) = &arm.guard {
            self.visit_expr(guard);
        }
        self.visit_slot(&arm.body, ExpressionSlot::Block);
    }

    fn visit_expr_match(&mut self, of: &'ast syn::ExprMatch) {
        self.settle_arms(&of.arms);
        visit::visit_expr_match(self, of);
    }

    fn visit_expr_if(&mut self, of: &'ast syn::ExprIf) {
        self.visit_expr(&of.cond);
        self.visit_block(&of.then_branch);
        if let Some((_, otherwise)) = &of.else_branch {
            self.visit_slot(otherwise, ExpressionSlot::Block);
        }
    }

    fn visit_local_init(&mut self, init: &'ast syn::LocalInit) {
        self.visit_expr(&init.expr);
        if let Some((_, diverging)) = &init.diverge {
            self.visit_slot(diverging, ExpressionSlot::Block);
        }
    }

    fn visit_expr_closure(&mut self, closure: &'ast syn::ExprClosure) {
        let slot = match closure.output {
            syn::ReturnType::Default => ExpressionSlot::Free,
            syn::ReturnType::Type(..) => ExpressionSlot::Block,
        };
        self.visit_in(CodeContext::Runtime, |finder| finder.visit_slot(&closure.body, slot));
    }

    fn visit_field_value(&mut self, field: &'ast syn::FieldValue) {
        match (&field.colon_token, &field.member) {
            (None, syn::Member::Named(name)) => {
                self.visit_slot(&field.expr, ExpressionSlot::Shorthand(name.to_string()));
            }
            _ => self.visit_expr(&field.expr),
        }
    }

    fn visit_expr_assign(&mut self, assign: &'ast syn::ExprAssign) {
        self.visit_slot(&assign.left, ExpressionSlot::Written);
        self.visit_expr(&assign.right);
    }

    fn visit_expr_binary(&mut self, binary: &'ast syn::ExprBinary) {
        let slot = if is_assigning(&binary.op) { ExpressionSlot::Written } else { ExpressionSlot::Free };
        self.visit_slot(&binary.left, slot);
        self.visit_expr(&binary.right);
    }

    fn visit_expr_reference(&mut self, reference: &'ast syn::ExprReference) {
        let slot =
            if reference.mutability.is_some() { ExpressionSlot::Written } else { ExpressionSlot::Free };
        self.visit_slot(&reference.expr, slot);
    }

    fn visit_expr_repeat(&mut self, repeat: &'ast syn::ExprRepeat) {
        self.visit_expr(&repeat.expr);
        self.visit_in(CodeContext::Outside, |finder| finder.visit_expr(&repeat.len));
    }

    fn visit_expr_const(&mut self, of: &'ast syn::ExprConst) {
        self.visit_in(CodeContext::Outside, |finder| visit::visit_expr_const(finder, of));
    }

    // Patterns contain no code that runs.
    fn visit_pat(&mut self, _: &'ast syn::Pat) {}
    fn visit_type(&mut self, _: &'ast syn::Type) {}
    fn visit_attribute(&mut self, _: &'ast syn::Attribute) {}
    fn visit_path_arguments(&mut self, _: &'ast syn::PathArguments) {}
    fn visit_angle_bracketed_generic_arguments(&mut self, _: &'ast syn::AngleBracketedGenericArguments) {}
}

fn refuse_constant(name: &str) -> AnchorNode {
    AnchorNode::Refused(format!(
        "{name} is `const` and cannot ask for the bug at run time: plant the bug in a caller, or make it a plain `fn`"
    ))
}

/// The code after statements whose last is this one.
pub(crate) fn statements_end(last: &syn::Stmt, ends_block: bool) -> StatementsEnd {
    match last {
        _ if !ends_block => StatementsEnd::Plain,
        syn::Stmt::Expr(syn::Expr::ForLoop(_) | syn::Expr::While(_), None) => StatementsEnd::Unit,
        syn::Stmt::Expr(syn::Expr::If(of), None) if of.else_branch.is_none() => StatementsEnd::Unit,
        syn::Stmt::Expr(_, None) => StatementsEnd::Value,
        syn::Stmt::Macro(of) if of.semi_token.is_none() => StatementsEnd::Value,
        _ => StatementsEnd::Plain,
    }
}

/// Why statements cannot be put into a block of their own: they only define names for later statements.
pub(crate) fn name_lost(statements: &[syn::Stmt], ends_block: bool) -> Option<String> {
    let is_name = |statement: &syn::Stmt| match statement {
        // `let _ = value;` names nothing.
        syn::Stmt::Local(local) => !matches!(local.pat, syn::Pat::Wild(_)),
        other => matches!(other, syn::Stmt::Item(_)),
    };
    if ends_block || !statements.iter().all(is_name) {
        return None;
    }
    Some(match statements.first() {
        Some(syn::Stmt::Item(_)) => {
            "the anchor is an item, whose name would be out of scope: anchor a part of its body".to_owned()
        }
        _ => "the anchor is a `let`, whose name would be out of scope: anchor its initialiser".to_owned(),
    })
}

fn parts_of_arm(arm: &syn::Arm) -> ArmParts {
    ArmParts {
        pattern_end: arm.pat.span().byte_range().end,
        guard: arm.guard.as_ref().map(|(_, guard)| guard.span().byte_range()),
        body: arm.body.span().byte_range(),
    }
}

fn has_let(expression: &syn::Expr) -> bool {
    match expression {
        syn::Expr::Let(_) => true,
        syn::Expr::Binary(binary) => has_let(&binary.left) || has_let(&binary.right),
        _ => false,
    }
}

fn is_place(expression: &syn::Expr) -> bool {
    match expression {
        syn::Expr::Path(_) | syn::Expr::Field(_) | syn::Expr::Index(_) => true,
        syn::Expr::Unary(unary) => matches!(unary.op, syn::UnOp::Deref(_)),
        syn::Expr::Paren(inner) => is_place(&inner.expr),
        _ => false,
    }
}

fn is_assigning(operator: &syn::BinOp) -> bool {
    use syn::BinOp;
    matches!(
        operator,
        BinOp::AddAssign(_)
            | BinOp::SubAssign(_)
            | BinOp::MulAssign(_)
            | BinOp::DivAssign(_)
            | BinOp::RemAssign(_)
            | BinOp::BitXorAssign(_)
            | BinOp::BitAndAssign(_)
            | BinOp::BitOrAssign(_)
            | BinOp::ShlAssign(_)
            | BinOp::ShrAssign(_)
    )
}
