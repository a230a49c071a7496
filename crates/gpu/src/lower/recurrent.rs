//! Recurrences: blocks walk the spans of the step in order.

use puna_backend::BackendError;
use puna_graph::ops::{KeyHeads, OpDef};
use puna_graph::{Node, Op, ValueId};

use super::{Arg, Lowering, NULL, ONE, args, extent};
use crate::Extent;

impl Lowering<'_, '_> {
    pub(super) fn recurrence(&mut self, node: &Node, value: ValueId) -> Result<(), BackendError> {
        let Some(state) = node.op.state() else { return Err(self.refuse("a recurrence has no state")) };
        let Some(cells) = self.around.caches.parts(state).first().copied() else {
            return Err(self.refuse("a recurrent state was not made"));
        };
        let group = self.around.caches.group(state);
        let spans: Arg = self.around.places.spans(group).into();
        let counts: Arg = self.around.places.span_count(group).into();
        let memory: Arg = cells.address.into();
        let mut inputs = Vec::new();
        for operand in &node.inputs {
            inputs.push(self.operand(*operand)?);
        }
        let types: Vec<_> = node.inputs.iter().map(|operand| self.graph.operand_type(*operand)).collect();
        let out: Arg = self.value_slot(value).into();
        let blocks = |count: u32| [Extent::Fixed(count.max(1)), ONE, ONE];
        let width = node.ty.row_elements() as u32;
        let input = |place: usize| inputs.get(place).copied().unwrap_or(NULL);
        match &node.op {
            Op::TokenShift(_) => {
                let arguments = args![input(0), out, memory, spans, counts, width];
                self.launch("token_shift", blocks(width.div_ceil(128)), 128, 0, arguments);
            }
            Op::ShortConvolution(_) => {
                let kernel = extent(&types[1], 1);
                let arguments =
                    args![input(0), input(1), input(2), out, memory, spans, counts, width, kernel];
                self.launch("short_convolution", blocks(width.div_ceil(128)), 128, 0, arguments);
            }
            Op::SelectiveScan(_) => {
                let (heads, dim) = (extent(&types[0], 1), extent(&types[0], 2));
                let (groups, size) = (extent(&types[3], 1), extent(&types[3], 2));
                let rates = if types[2].shape.len() == 2 { size } else { 1 };
                let mut arguments: Vec<Arg> = (0..6).map(input).collect();
                arguments.extend(args![out, memory, spans, counts, heads, dim, groups, size, rates]);
                self.launch("selective_scan", blocks((heads * dim).div_ceil(4)), 128, 0, arguments);
            }
            Op::GatedDeltaRule(rule) => {
                let (key_heads, key_dim) = (extent(&types[1], 1), extent(&types[1], 2));
                let (heads, value_dim) = (extent(&types[2], 1), extent(&types[2], 2));
                let decay_dim = extent(&types[3], 2);
                let cyclic = rule.key_heads == KeyHeads::Cyclic;
                let mut arguments: Vec<Arg> = (0..5).map(input).collect();
                arguments.extend(args![
                    out, memory, spans, counts, key_heads, key_dim, heads, value_dim, decay_dim, cyclic,
                    rule.scale
                ]);
                let threads = value_dim.next_multiple_of(32).clamp(32, 256);
                self.launch("gated_delta_rule", blocks(heads), threads, 0, arguments);
            }
            Op::GatedLinearAttention(attention) => {
                let (heads, key_dim, value_dim) =
                    (extent(&types[1], 1), extent(&types[1], 2), extent(&types[2], 2));
                let (decays, head_decays, bonus) = match &attention.head_decays {
                    Some(decays) => {
                        let bytes = decays.iter().flat_map(|decay| decay.to_le_bytes()).collect();
                        (NULL, self.constant(bytes)?.into(), input(3))
                    }
                    None => (input(3), NULL, input(4)),
                };
                let arguments = args![
                    input(0),
                    input(1),
                    input(2),
                    decays,
                    head_decays,
                    bonus,
                    out,
                    memory,
                    spans,
                    counts,
                    heads,
                    key_dim,
                    value_dim,
                    attention.scale
                ];
                let threads = value_dim.next_multiple_of(32).clamp(32, 256);
                self.launch("gated_linear_attention", blocks(heads), threads, 0, arguments);
            }
            Op::Rwkv7(_) => {
                let (heads, dim) = (extent(&types[0], 1), extent(&types[0], 2));
                let mut arguments: Vec<Arg> = (0..6).map(input).collect();
                arguments.extend(args![out, memory, spans, counts, heads, dim]);
                self.launch("rwkv7", blocks(heads), 256, 0, arguments);
            }
            other => return Err(self.refuse(&format!("{} is no recurrence", other.name()))),
        }
        Ok(())
    }
}
