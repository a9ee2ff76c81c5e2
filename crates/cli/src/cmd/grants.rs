//! The modes that a libfabric provider grants on each NIC, beyond the fields that all fabrics have. Called by `info`;
//! opens nothing.

use serde::Serialize;
use trunkline_fabric::Fabric as _;
use trunkline_ofi::OfiFabric;
use trunkline_ofi::typed::ProviderGrant;

/// A NIC.
#[derive(Debug, Serialize)]
pub(super) struct GrantRow {
    nic: String,
    /// A registration belongs to one endpoint; if false, to the NIC's domain.
    endpoint_scoped: bool,
    /// The provider chooses keys; if false, we choose keys of `key_bits` bits.
    provider_keys: bool,
    key_bits: u32,
    /// Peers use the owner's virtual addresses; if false, offsets.
    virtual_addresses: bool,
    /// Source buffers must be registered, too (`FI_MR_LOCAL`).
    local_registration: bool,
    /// Operations progress without calls.
    data_progress_auto: bool,
    /// Set-up progresses without calls.
    control_progress_auto: bool,
    /// libfabric's threading model.
    threading: &'static str,
    cq_data_bytes: usize,
    /// A write with immediate data consumes a receive (`FI_RX_CQ_DATA`).
    data_takes_receive: bool,
    inject_max: usize,
    tag_bits: u32,
}

/// Returns one row per NIC.
pub(super) fn grant_rows(fabric: &OfiFabric) -> Vec<GrantRow> {
    let nics = fabric.nics().iter().enumerate();
    nics.filter_map(|(at, nic)| Some(grant_row(nic.name.clone(), &fabric.provider_grant(at)?))).collect()
}

fn grant_row(nic: String, granted: &ProviderGrant) -> GrantRow {
    GrantRow {
        nic,
        endpoint_scoped: granted.endpoint_scoped,
        provider_keys: granted.prov_key,
        key_bits: granted.key_bits,
        virtual_addresses: granted.virt_addr,
        local_registration: granted.local,
        data_progress_auto: granted.data_auto,
        control_progress_auto: granted.control_auto,
        threading: granted.threading_name(),
        cq_data_bytes: granted.cq_data_bytes,
        data_takes_receive: granted.data_takes_receive,
        inject_max: granted.sizes.inject,
        tag_bits: granted.tag_bits,
    }
}

/// The titles of [`GrantRow::row_cells`].
pub(super) fn column_titles() -> [String; 9] {
    ["nic", "regions of", "keys", "addresses", "local", "progress", "threads", "cq data", "inject"]
        .map(str::to_owned)
}

impl GrantRow {
    pub(super) fn row_cells(&self) -> [String; 9] {
        let or = |is: bool, yes: &str, no: &str| if is { yes } else { no }.to_owned();
        let progress = match (self.data_progress_auto, self.control_progress_auto) {
            (true, true) => "auto",
            (true, false) => "auto, set-up manual",
            (false, true) => "manual, set-up auto",
            (false, false) => "manual",
        };
        let taken = if self.data_takes_receive { ", takes a receive" } else { "" };
        [
            self.nic.clone(),
            or(self.endpoint_scoped, "endpoint", "domain"),
            if self.provider_keys {
                "provider's".to_owned()
            } else {
                format!("ours, {} bits", self.key_bits)
            },
            or(self.virtual_addresses, "virtual", "offsets"),
            or(self.local_registration, "registered", "any"),
            progress.to_owned(),
            self.threading.to_owned(),
            format!("{} B{taken}", self.cq_data_bytes),
            format!("{} B", self.inject_max),
        ]
    }
}
