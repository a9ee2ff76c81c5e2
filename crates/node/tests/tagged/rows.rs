//! Buffers in rows, of which a further row finds its device busy in the middle of a batch. The copies that were begun
//! end first, and then all rows are copied again.

use trunkline_proto::ipc::exporter::ExportAmount;
use trunkline_proto::tagged::{CopyMethod, MethodChoice, StridedRows};
use trunkline_proto::wire::tagged::InboxSizes;

use crate::kind::Call;
use crate::two::{Two, Where, pattern};

#[test]
fn rows_are_copied_again_after_a_partial_batch() {
    // Short; mapped; staged.
    for (len, has_handles) in [(300, true), (10_000, true), (10_000, false)] {
        let inbox = InboxSizes::new(1024, 512, 1 << 21).unwrap();
        let mut two = Two::with(inbox, ExportAmount { entries: 16, bytes: 1 << 40 });
        two.a.endpoint.set_copy_choice(MethodChoice::Fixed(CopyMethod::Pull));
        two.b.kind().hold(1);
        if !has_handles {
            two.a.fail(Call::Export, u64::MAX);
            two.b.fail(Call::Export, u64::MAX);
        }
        let source = two.a.buffer(Where::Own, len);
        let target = two.b.buffer(Where::Own, 2 * len).in_rows(StridedRows::new(100, 200).unwrap());
        two.a.fill(&source, 3);
        let received = two.post(1, &target);
        let sent = two.send(1, &source);
        two.b.fail(Call::Further, 1);
        two.rest();
        assert_eq!(two.b.kind().under_way(), 1, "{len}: the second row must not be begun");
        assert_eq!(two.b.endpoint.test(received), None);
        two.b.kind().let_go();
        two.rest();
        assert!(two.b.kind().under_way() > 1, "{len}: all rows must be begun");
        assert_eq!(two.b.endpoint.test(received), None);
        for _ in 0..10 {
            two.b.kind().let_go();
            two.rest();
        }
        assert!(two.both(sent, received).iter().all(Result::is_ok), "{len}");
        assert!(two.b.bytes(&target) == pattern(len, 3), "{len}");
        assert_eq!(two.a.endpoint.counts().fallbacks, u64::from(!has_handles), "{len}");
    }
}
