//! The choice of experts, and sums of what they make.

use puna_backend::BackendError;
use puna_graph::{Node, Op, ValueId};

use super::{Lowering, THREADS, args, extent, symbol_of};
use crate::{Argument, codes};

impl Lowering<'_, '_> {
    pub(super) fn expert_choice(&mut self, node: &Node, value: ValueId) -> Result<(), BackendError> {
        let symbol = symbol_of(&node.ty);
        let first = self.graph.operand_type(node.inputs[0]);
        let x = self.operand(node.inputs[0])?;
        let second = self.optional(node.inputs.get(1))?;
        let third = self.optional(node.inputs.get(2))?;
        let out = self.value_slot(value);
        let rows = self.row_count(symbol);
        let width = node.ty.row_elements() as u32;
        let slots = |times: u32| super::Arg::Known(Argument::Rows(symbol, times));
        match &node.op {
            Op::RouteExperts(route) => {
                let experts = first.width().unwrap_or(1);
                let (groups, groups_used) = route.groups.map_or((0, 0), |groups| (groups.count, groups.used));
                let gating = codes::gating(route.gating);
                let arguments = args![x, second, out, experts, route.used, gating, groups, groups_used];
                self.launch("route_experts", self.groups(symbol, 1), 32, 0, arguments);
            }
            Op::ExpertWeights(weights) => {
                let experts = first.width().unwrap_or(1);
                let arguments = args![
                    x,
                    second,
                    third,
                    out,
                    experts,
                    width,
                    codes::gating(weights.gating),
                    weights.normalise,
                    weights.scale,
                ];
                self.launch("expert_weights", self.groups(symbol, 1), 32, 0, arguments);
            }
            Op::SumExperts(_) => {
                let arguments = args![x, second, out, rows, extent(&first, 1), width];
                self.launch("sum_experts", self.elements(symbol, width), THREADS, 0, arguments);
            }
            Op::AddExpertBias(_) => {
                let (used, width) = (extent(&node.ty, 1), extent(&node.ty, 2));
                let arguments = args![x, second, third, out, slots(used), width];
                self.launch("add_expert_bias", self.elements(symbol, used * width), THREADS, 0, arguments);
            }
            Op::GroupOfExpert(group) => {
                let arguments = args![x, out, slots(width), group.size];
                self.launch("group_of_expert", self.elements(symbol, width), THREADS, 0, arguments);
            }
            other => return Err(self.refuse(&format!("{} chooses no experts", other.name()))),
        }
        Ok(())
    }
}
