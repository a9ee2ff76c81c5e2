//! The C prototype of every slot of the function tables, read from the sources of `trunkline-sys`.
//!
//! Only `bindings` calls this. Sizes and offsets cannot distinguish an `int` argument from a `size_t`; a C compiler
//! that compares two function types can.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use syn::{GenericArgument, PathArguments, ReturnType, Type};

use crate::source::SourceFile;

/// A named function type: its type parameters and its signature.
pub(super) type FunctionAliases = BTreeMap<String, (Vec<String>, syn::TypeBareFn)>;

/// C expressions that are 1 when a slot has the type that Rust gives it.
///
/// # Errors
/// A source cannot be read, or contains a type that has no C name here.
pub(super) fn prototype_checks(sys: &Path) -> Result<Vec<String>> {
    let folder = sys.join("src/nccl_net");
    let aliases = function_aliases(&SourceFile::read(&folder.join("mod.rs"))?);
    let mut checks = Vec::new();
    for version in 6..=12 {
        let source = SourceFile::read(&folder.join(format!("v{version}.rs")))?;
        let slots = TableSlots { aliases: &aliases, version };
        for item in &source.product.items {
            if let syn::Item::Struct(table) = item
                && table.ident == format!("NetV{version}")
            {
                checks.extend(slots.slot_checks(table)?);
            }
        }
    }
    if checks.is_empty() {
        bail!("no function tables in {}", folder.display());
    }
    Ok(checks)
}

/// The named function types of a source.
pub(super) fn function_aliases(source: &SourceFile) -> FunctionAliases {
    let mut aliases = FunctionAliases::new();
    for item in &source.product.items {
        if let syn::Item::Type(alias) = item
            && let Type::BareFn(signature) = &*alias.ty
        {
            let parameters = alias.generics.type_params().map(|p| p.ident.to_string()).collect();
            aliases.insert(alias.ident.to_string(), (parameters, signature.clone()));
        }
    }
    aliases
}

/// The tables of one version.
struct TableSlots<'a> {
    aliases: &'a FunctionAliases,
    version: u8,
}

impl TableSlots<'_> {
    fn slot_checks(&self, table: &syn::ItemStruct) -> Result<Vec<String>> {
        let mut checks = Vec::new();
        for field in &table.fields {
            let Some(name) = &field.ident else { continue };
            let Some(function) = inside_option(&field.ty) else { continue };
            let slot = format!("((ncclNet_v{}_t*)0)->{}", self.version, super::camel_case(&name.to_string()));
            let prototype =
                self.render_prototype(function).with_context(|| format!("v{}: {name}", self.version))?;
            checks.push(format!("__builtin_types_compatible_p(__typeof__({slot}), {prototype})"));
        }
        Ok(checks)
    }

    /// `ncclResult_t (*)(void*, int)` for an alias, with its type arguments inserted.
    fn render_prototype(&self, function: &Type) -> Result<String> {
        let Type::Path(path) = function else { bail!("no named type") };
        let name = path.path.segments.last().context("an empty path")?;
        let (parameters, signature) = self
            .aliases
            .get(&name.ident.to_string())
            .with_context(|| format!("{} is no alias", name.ident))?;
        let mut given = BTreeMap::new();
        if let PathArguments::AngleBracketed(arguments) = &name.arguments {
            for (parameter, argument) in parameters.iter().zip(&arguments.args) {
                let GenericArgument::Type(argument) = argument else { bail!("an odd type argument") };
                given.insert(parameter.clone(), self.render_c_type(argument, &BTreeMap::new())?);
            }
        }
        let arguments = signature
            .inputs
            .iter()
            .map(|i| self.render_c_type(&i.ty, &given))
            .collect::<Result<Vec<_>>>()?
            .join(", ");
        let result = match &signature.output {
            ReturnType::Default => "void".to_owned(),
            ReturnType::Type(_, ty) => self.render_c_type(ty, &given)?,
        };
        Ok(format!("{result} (*)({arguments})"))
    }

    fn render_c_type(&self, ty: &Type, given: &BTreeMap<String, String>) -> Result<String> {
        if let Type::Ptr(pointer) = ty {
            let behind = self.render_c_type(&pointer.elem, given)?;
            let constant = if pointer.const_token.is_some() { "const " } else { "" };
            return Ok(format!("{constant}{behind}*"));
        }
        if let Some(function) = inside_option(ty) {
            return self.render_c_type(function, given);
        }
        let Type::Path(path) = ty else { bail!("a type without a C name") };
        let name = path.path.segments.last().context("an empty path")?.ident.to_string();
        let version = self.version;
        Ok(match name.as_str() {
            "c_int" => "int".to_owned(),
            "c_char" => "char".to_owned(),
            "c_void" => "void".to_owned(),
            "usize" => "size_t".to_owned(),
            "u64" => "uint64_t".to_owned(),
            "ResultCode" => "ncclResult_t".to_owned(),
            "Logger" => "ncclDebugLogger_t".to_owned(),
            "ProfilerCallback" => "ncclProfilerCallback_t".to_owned(),
            "DeviceHandle" => format!("ncclNetDeviceHandle_v{version}_t"),
            "CommConfig" => format!("ncclNetCommConfig_v{version}_t"),
            "NetAttr" => format!("ncclNetAttr_v{version}_t"),
            "VDeviceProps4" | "VDeviceProps8" => format!("ncclNetVDeviceProps_v{version}_t"),
            properties if properties == format!("PropertiesV{version}") => {
                format!("ncclNetProperties_v{version}_t")
            }
            parameter => given.get(parameter).with_context(|| format!("{parameter} has no C name"))?.clone(),
        })
    }
}

/// The `T` of an `Option<T>`.
pub(super) fn inside_option(ty: &Type) -> Option<&Type> {
    let Type::Path(path) = ty else { return None };
    let last = path.path.segments.last().filter(|s| s.ident == "Option")?;
    let PathArguments::AngleBracketed(arguments) = &last.arguments else { return None };
    match arguments.args.first()? {
        GenericArgument::Type(inner) => Some(inner),
        _ => None,
    }
}
