# SPDX-License-Identifier: MIT
# Generalised assignment of tasks to agents, relaxed: a linear program with random costs.
param agents := 40;
param tasks := 500;
set A := 1..agents;
set T := 1..tasks;
param cost{A, T} := Uniform(10, 100);
param load{A, T} := Uniform(5, 25);
var x{A, T} >= 0, <= 1;
minimize total: sum{a in A, t in T} cost[a, t] * x[a, t];
s.t. done{t in T}: sum{a in A} x[a, t] = 1;
s.t. room{a in A}: sum{t in T} load[a, t] * x[a, t] <= 11 * tasks / agents;
solve;
printf "assigned %d tasks\n", sum{a in A, t in T} x[a, t];
end;
