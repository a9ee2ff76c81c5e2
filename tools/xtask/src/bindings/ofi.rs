//! Compares the types and functions of libfabric in `trunkline-sys` with a C compiler's.
//!
//! Only `bindings` calls this. The reference is the library's own headers, where they are installed: those of 1.17, or
//! later ones, where some structs may be longer.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use quote::ToTokens as _;
use syn::{Expr, Item, ReturnType, Type};
use trunkline_sys::ofi::{
    AvAttr, BusAttr, CntrAttr, Context, Context2, CqAttr, CqDataEntry, CqEntry, CqErrEntry, CqErrEntryLater,
    CqMsgEntry, CqTaggedEntry, DeviceAttr, DomainAttr, EpAttr, EqAttr, EqErrEntry, FabricAttr, Fid, FidAv,
    FidCntr, FidCq, FidDomain, FidEp, FidEq, FidFabric, FidMr, FidNic, FidPep, FidVar, Info, Ioc, Iovec,
    LinkAttr, MrAttr, MrAttrLater, MrDmabuf, MrModify, Msg, MsgAtomic, MsgRma, MsgTagged, Ops, OpsAtomic,
    OpsAv, OpsCm, OpsCntr, OpsCq, OpsDomain, OpsEp, OpsEq, OpsFabric, OpsMr, OpsMsg, OpsRma, OpsTagged,
    PciAttr, Provider, RmaIoc, RmaIov, RxAttr, TxAttr,
};

use super::layouts::{StructLayout, layouts, size_behind};
use super::prototypes::{self, FunctionAliases};
use super::{HeaderFacts, as_fact};
use crate::source::SourceFile;

/// Our header that includes all necessary ones.
pub(super) const HEADER: &str = "tools/xtask/bindings/probe_ofi.h";
/// A header of the library whose presence means that it is installed.
pub(super) const KNOWN_BY: &str = "rdma/fi_domain.h";

/// Structs that later versions extended.
const LONGER: [&str; 12] = [
    "struct fi_ep_attr",
    "struct fi_domain_attr",
    "struct fi_mr_attr",
    "struct fi_mr_modify",
    "struct fi_cq_attr",
    "struct fi_cq_err_entry",
    "struct fi_cntr_attr",
    "struct fi_ops_av",
    "struct fi_ops_domain",
    "struct fi_ops_ep",
    "struct fi_ops_cq",
    "struct fi_ops_cntr",
];

/// The facts of libfabric according to Rust; `sys` is the folder of the crate.
///
/// # Errors
/// A source cannot be read, or contains a type or constant that has no C name here.
pub(super) fn ofi_facts(sys: &Path) -> Result<HeaderFacts> {
    let mut facts = HeaderFacts::new();
    for StructLayout { c, size, align, fields } in
        attribute_layouts().into_iter().chain(object_layouts()).chain(operation_layouts())
    {
        let longer = LONGER.contains(&c);
        size_of(&mut facts, longer, c, size);
        facts.insert(format!("_Alignof({c})"), as_fact(align));
        for (field, offset, size) in fields {
            let field = field.strip_prefix("r#").unwrap_or(field);
            facts.insert(format!("offsetof({c}, {field})"), as_fact(offset));
            // A struct that later versions extended may be a field of another struct.
            size_of(&mut facts, c == "struct fi_mr_modify", &format!("((({c}*)0)->{field})"), size);
        }
    }
    facts.extend(later_facts());
    let sources = read_sources(&sys.join("src/ofi"))?;
    let mut aliases = FunctionAliases::new();
    for source in &sources {
        aliases.extend(prototypes::function_aliases(source));
    }
    for source in &sources {
        for item in &source.product.items {
            match item {
                Item::Struct(table) => add_slot_checks(&mut facts, &aliases, table)?,
                Item::Mod(group) => {
                    for item in group.content.iter().flat_map(|(_, items)| items) {
                        add_constant(&mut facts, item)?;
                    }
                }
                item => add_constant(&mut facts, item)?,
            }
        }
    }
    Ok(facts)
}

/// Adds the size of a type or field: exact, or a lower bound for those that later versions extended.
fn size_of(facts: &mut HeaderFacts, longer: bool, of: &str, size: usize) {
    if longer {
        let than = format!("PROBE_VERSION > FI_VERSION(1, 17) ? sizeof({of}) >= {size}");
        facts.insert(format!("({than} : sizeof({of}) == {size})"), 1);
    } else {
        facts.insert(format!("sizeof({of})"), as_fact(size));
    }
}

/// Facts that only later headers have.
fn later_facts() -> impl Iterator<Item = (String, i64)> {
    use std::mem::offset_of;
    let attr = "struct fi_mr_attr";
    let places = [
        (attr, "hmem_data", offset_of!(MrAttrLater, hmem_data)),
        (attr, "page_size", offset_of!(MrAttrLater, page_size)),
        (attr, "base_mr", offset_of!(MrAttrLater, base_mr)),
        (attr, "sub_mr_cnt", offset_of!(MrAttrLater, sub_mr_cnt)),
        ("struct fi_cq_err_entry", "src_addr", offset_of!(CqErrEntryLater, src_addr)),
    ];
    let sizes = [
        (attr, std::mem::size_of::<MrAttrLater>()),
        ("struct fi_cq_err_entry", std::mem::size_of::<CqErrEntryLater>()),
    ];
    let places = places.map(|(c, field, at)| (format!("offsetof({c}, {field})"), at));
    let sizes = sizes.map(|(c, size)| (format!("sizeof({c})"), size));
    let all = places.into_iter().chain(sizes);
    all.map(|(c, number)| (format!("PROBE_LATER({c}, {number})"), as_fact(number)))
}

fn read_sources(folder: &Path) -> Result<Vec<SourceFile>> {
    let mut paths = Vec::<PathBuf>::new();
    for entry in std::fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        paths.push(entry?.path());
    }
    paths.sort();
    paths.iter().map(|path| SourceFile::read(path)).collect()
}

/// Adds a constant whose text begins with its name in C: the C compiler gets the same value as a C expression.
fn add_constant(facts: &mut HeaderFacts, item: &Item) -> Result<()> {
    let Item::Const(constant) = item else { return Ok(()) };
    let text = constant.attrs.iter().find_map(|attr| match &attr.meta {
        syn::Meta::NameValue(doc) => Some(doc.value.to_token_stream().to_string()),
        _ => None,
    });
    let Some(name) = text.as_deref().and_then(|text| text.strip_prefix("\" `FI_")) else { return Ok(()) };
    let name = name.split('`').next().context("an open quote")?;
    let value = render_c_value(&constant.expr).with_context(|| format!("the value of FI_{name}"))?;
    facts.insert(format!("FI_{name} == {value}"), 1);
    Ok(())
}

fn render_c_value(value: &Expr) -> Result<String> {
    let text = value.to_token_stream().to_string();
    match text.split(' ').collect::<Vec<_>>()[..] {
        ["u64", "::", "MAX"] => Ok("UINT64_MAX".to_owned()),
        [number] => Ok(number.to_owned()),
        [one, "<<", shift] => Ok(format!("({one}ULL << {shift})")),
        _ => bail!("{text} has no C words"),
    }
}

/// C expressions that are 1 when a function, or a slot of a table, has the type that Rust gives it.
fn add_slot_checks(
    facts: &mut HeaderFacts,
    aliases: &FunctionAliases,
    table: &syn::ItemStruct,
) -> Result<()> {
    let name = table.ident.to_string();
    for field in &table.fields {
        let Some(slot) = field.ident.as_ref().map(ToString::to_string) else { continue };
        let (place, function) = match (name.as_str(), prototypes::inside_option(&field.ty)) {
            ("Calls", _) => (format!("&fi_{slot}"), &field.ty),
            (_, Some(function)) => (format!("(({}*)0)->{slot}", c_struct(&name)), function),
            _ => continue,
        };
        let prototype = render_prototype(aliases, function).with_context(|| format!("{name}: {slot}"))?;
        facts.insert(format!("__builtin_types_compatible_p(__typeof__({place}), {prototype})"), 1);
    }
    Ok(())
}

/// `int (*)(struct fid_ep*, ...)` for an alias.
fn render_prototype(aliases: &FunctionAliases, function: &Type) -> Result<String> {
    let Type::Path(path) = function else { bail!("no named type") };
    let name = path.path.segments.last().context("an empty path")?.ident.to_string();
    let (_, signature) = aliases.get(&name).with_context(|| format!("{name} is no alias"))?;
    let arguments =
        signature.inputs.iter().map(|input| render_c_type(&input.ty)).collect::<Result<Vec<_>>>()?.join(", ");
    let result = match &signature.output {
        ReturnType::Default => "void".to_owned(),
        ReturnType::Type(_, ty) => render_c_type(ty)?,
    };
    // C needs `void` for a function without arguments.
    let arguments = if arguments.is_empty() { "void".to_owned() } else { arguments };
    Ok(format!("{result} (*)({arguments})"))
}

fn render_c_type(ty: &Type) -> Result<String> {
    if let Type::Ptr(pointer) = ty {
        let constant = if pointer.const_token.is_some() { "const " } else { "" };
        return Ok(format!("{constant}{}*", render_c_type(&pointer.elem)?));
    }
    let Type::Path(path) = ty else { bail!("a type without a C name") };
    let name = path.path.segments.last().context("an empty path")?.ident.to_string();
    Ok(match name.as_str() {
        "c_int" => "int",
        "c_char" => "char",
        "c_void" => "void",
        "usize" => "size_t",
        "isize" => "ssize_t",
        "u32" => "uint32_t",
        "u64" => "uint64_t",
        "Addr" => "fi_addr_t",
        "Datatype" => "enum fi_datatype",
        "AtomicOp" => "enum fi_op",
        "CollectiveOp" => "enum fi_collective_op",
        "Type" => "enum fi_type",
        object => return Ok(c_struct(object)),
    }
    .to_owned())
}

/// `struct fid_ep` for `FidEp`, and `struct fi_cq_attr` for `CqAttr`.
fn c_struct(name: &str) -> String {
    if name == "Iovec" {
        return "struct iovec".to_owned();
    }
    let words = name.chars().fold(String::new(), |mut out, letter| {
        if letter.is_ascii_uppercase() {
            out.push('_');
        }
        out.push(letter.to_ascii_lowercase());
        out
    });
    if name.starts_with("Fid") && name != "FidVar" {
        format!("struct {}", &words[1..])
    } else {
        format!("struct fi{words}")
    }
}

/// Attributes that are requested and offered.
fn attribute_layouts() -> Vec<StructLayout> {
    layouts! {
        "struct fi_info" = Info {
            next caps mode addr_format src_addrlen dest_addrlen src_addr dest_addr handle tx_attr
            rx_attr ep_attr domain_attr fabric_attr nic
        }
        "struct fi_tx_attr" = TxAttr {
            caps mode op_flags msg_order comp_order inject_size size iov_limit rma_iov_limit tclass
        }
        "struct fi_rx_attr" = RxAttr {
            caps mode op_flags msg_order comp_order total_buffered_recv size iov_limit
        }
        "struct fi_ep_attr" = EpAttr {
            r#type protocol protocol_version max_msg_size msg_prefix_size max_order_raw_size
            max_order_war_size max_order_waw_size mem_tag_format tx_ctx_cnt rx_ctx_cnt auth_key_size
            auth_key
        }
        "struct fi_domain_attr" = DomainAttr {
            domain name threading control_progress data_progress resource_mgmt av_type mr_mode
            mr_key_size cq_data_size cq_cnt ep_cnt tx_ctx_cnt rx_ctx_cnt max_ep_tx_ctx max_ep_rx_ctx
            max_ep_stx_ctx max_ep_srx_ctx cntr_cnt mr_iov_limit caps mode auth_key auth_key_size
            max_err_data mr_cnt tclass
        }
        "struct fi_fabric_attr" = FabricAttr { fabric name prov_name prov_version api_version }
        "struct fid_nic" = FidNic { fid device_attr bus_attr link_attr prov_attr }
        "struct fi_device_attr" = DeviceAttr { name device_id device_version vendor_id driver firmware }
        "struct fi_pci_attr" = PciAttr { domain_id bus_id device_id function_id }
        "struct fi_bus_attr" = BusAttr { bus_type attr }
        "struct fi_link_attr" = LinkAttr { address mtu speed state network_type }
    }
}

/// Objects, their tables and the entries of queues.
fn object_layouts() -> Vec<StructLayout> {
    layouts! {
        "struct fid" = Fid { fclass context ops }
        "struct fi_ops" = Ops { size close bind control ops_open tostr ops_set }
        "struct fid_fabric" = FidFabric { fid ops api_version }
        "struct fi_ops_fabric" = OpsFabric { size domain passive_ep eq_open wait_open trywait domain2 }
        "struct fi_fid_var" = FidVar { name val }
        "struct fid_domain" = FidDomain { fid ops mr }
        "struct fi_ops_domain" = OpsDomain {
            size av_open cq_open endpoint scalable_ep cntr_open poll_open stx_ctx srx_ctx
            query_atomic query_collective endpoint2
        }
        "struct fid_mr" = FidMr { fid mem_desc key }
        "struct fi_ops_mr" = OpsMr { size reg regv regattr }
        "struct fi_mr_attr" = MrAttr {
            mr_iov iov_count access offset requested_key context auth_key_size auth_key iface device
        }
        "struct fi_mr_modify" = MrModify { flags attr }
        "struct fi_mr_dmabuf" = MrDmabuf { fd offset len base_addr }
        "struct fi_av_attr" = AvAttr { r#type rx_ctx_bits count ep_per_node name map_addr flags }
        "struct fid_av" = FidAv { fid ops }
        "struct fi_ops_av" = OpsAv { size insert insertsvc insertsym remove lookup straddr av_set }
        "struct fid_ep" = FidEp { fid ops cm msg rma tagged atomic collective }
        "struct fid_pep" = FidPep { fid ops cm }
        "struct fi_ops_ep" = OpsEp { size cancel getopt setopt tx_ctx rx_ctx rx_size_left tx_size_left }
        "struct fi_ops_cm" = OpsCm {
            size setname getname getpeer connect listen accept reject shutdown join
        }
        "struct fi_cq_attr" = CqAttr { size flags format wait_obj signaling_vector wait_cond wait_set }
        "struct fi_cq_entry" = CqEntry { op_context }
        "struct fi_cq_msg_entry" = CqMsgEntry { op_context flags len }
        "struct fi_cq_data_entry" = CqDataEntry { op_context flags len buf data }
        "struct fi_cq_tagged_entry" = CqTaggedEntry { op_context flags len buf data tag }
        "struct fi_cq_err_entry" = CqErrEntry {
            op_context flags len buf data tag olen err prov_errno err_data err_data_size
        }
        "struct fid_cq" = FidCq { fid ops }
        "struct fi_ops_cq" = OpsCq { size read readfrom readerr sread sreadfrom signal strerror }
        "struct fi_eq_attr" = EqAttr { size flags wait_obj signaling_vector wait_set }
        "struct fi_eq_err_entry" = EqErrEntry { fid context data err prov_errno err_data err_data_size }
        "struct fid_eq" = FidEq { fid ops }
        "struct fi_ops_eq" = OpsEq { size read readerr write sread strerror }
        "struct fi_cntr_attr" = CntrAttr { events wait_obj wait_set flags }
        "struct fid_cntr" = FidCntr { fid ops }
        "struct fi_ops_cntr" = OpsCntr { size read readerr add set wait adderr seterr }
        "struct fi_provider" = Provider { version fi_version context name getinfo fabric cleanup }
        "struct iovec" = Iovec { iov_base iov_len }
        "struct fi_context" = Context { internal }
        "struct fi_context2" = Context2 { internal }
    }
}

/// Operations and their tables.
fn operation_layouts() -> Vec<StructLayout> {
    layouts! {
        "struct fi_msg" = Msg { msg_iov desc iov_count addr context data }
        "struct fi_msg_tagged" = MsgTagged { msg_iov desc iov_count addr tag ignore context data }
        "struct fi_ops_msg" = OpsMsg {
            size recv recvv recvmsg send sendv sendmsg inject senddata injectdata
        }
        "struct fi_ops_tagged" = OpsTagged {
            size recv recvv recvmsg send sendv sendmsg inject senddata injectdata
        }
        "struct fi_rma_iov" = RmaIov { addr len key }
        "struct fi_msg_rma" = MsgRma { msg_iov desc iov_count addr rma_iov rma_iov_count context data }
        "struct fi_ops_rma" = OpsRma {
            size read readv readmsg write writev writemsg inject writedata injectdata
        }
        "struct fi_ioc" = Ioc { addr count }
        "struct fi_rma_ioc" = RmaIoc { addr count key }
        "struct fi_msg_atomic" = MsgAtomic {
            msg_iov desc iov_count addr rma_iov rma_iov_count datatype op context data
        }
        "struct fi_ops_atomic" = OpsAtomic {
            size write writev writemsg inject readwrite readwritev readwritemsg compwrite compwritev
            compwritemsg writevalid readwritevalid compwritevalid
        }
    }
}
